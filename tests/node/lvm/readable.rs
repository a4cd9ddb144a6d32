//! A handle grants access: neither devices nor LVM's command lines may show it.

use super::{GROUP, GROWN, NEEDS, lvm};
use crate::node::{Backend, Node};
use crate::readable::expect_no_handle;
use flexvol_testing::{Points, tests};
use std::{
    collections::BTreeSet,
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

tests! {
    "lvm: who is not root reads no handle, and no key of a pool", NEEDS => hidden;
}

/// The command lines of all programs that contain these words, as every user can read them.
fn command_lines(with: &str, until: &AtomicBool) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    while !until.load(Ordering::Relaxed) {
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if line.contains(with) {
                seen.insert(line);
            }
        }
        thread::sleep(Duration::from_millis(2));
    }
    seen
}

fn hidden(points: &Points) {
    let node = Node::with(Backend::Lvm, "namespaces = \"any\"\n");
    let key = lvm(&["vgs", "--noheadings", "-o", "vg_tags", GROUP]);
    let key = key.trim().split(':').find_map(|it| it.strip_prefix("key="));
    let key = key.expect("a key in the pool's tag").to_owned();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watching = scope.spawn(|| command_lines(" --config ", &done));
        let volume = node.volume_of("pv", "ext4");
        let pod = node.pod(&volume);
        pod.mount("rw").success();
        expect_no_handle(node.sandbox.root(), &volume);
        node.expand(&volume, GROWN).success();
        pod.unmount().success();
        // Without the names in /run, the volume is found in LVM's metadata.
        fs::remove_dir_all("/run/flexvol/names").unwrap();
        assert_eq!(node.volume_of("pv", "ext4").handle(), volume.handle());
        node.delete(&volume).success();
        done.store(true, Ordering::Relaxed);
        let seen = watching.join().unwrap();
        let marking = seen.iter().filter(|line| line.contains("flexvol=1:"));
        assert!(
            marking.count() > 1,
            "no mark was seen being written: {seen:?}"
        );
        for secret in [volume.handle(), &key] {
            let telling: Vec<_> = seen.iter().filter(|line| line.contains(secret)).collect();
            assert!(telling.is_empty(), "{telling:?}");
        }
    });
    points.add(1);
}
