//! Changes while pods use volumes, and how the previous attach is found when its file was lost.

use super::{Node, stderr};
use flexvol_testing::{Need, Points, tests};
use nix::mount::{MsFlags, mount, umount};
use std::{
    fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

tests! {
    "install: attach does not change while volumes are mounted, and nothing is uninstalled", &[Need::Root]
        => while_mounted;
    "install: a line for init that was lost or damaged is written again, as kubelet was told", &[Need::Root]
        => damaged_line;
}

/// A volume that is mounted for a pod.
struct Mounted(PathBuf);

impl Mounted {
    fn of(node: &Node) -> Self {
        let pods = node.0.path().join("kubelet/pods/uid/volumes");
        let dir = pods.join("example.net~flexvol/pv");
        fs::create_dir_all(&dir).unwrap();
        let (kind, none) = (Some("tmpfs"), None::<&str>);
        mount(kind, &dir, kind, MsFlags::empty(), none).unwrap();
        Mounted(dir)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        umount(&self.0).expect("unmount the volume");
    }
}

fn damaged_line(points: &Points) {
    let node = Node::new();
    node.install("attach = true\n").success();
    let line = fs::read_to_string(node.file(".flexvol.init")).unwrap();
    let damage = |text: Option<&str>| match text {
        Some(text) => fs::write(node.file(".flexvol.init"), text).unwrap(),
        None => fs::remove_file(node.file(".flexvol.init")).unwrap(),
    };
    let volume = Mounted::of(&node);
    for text in [
        Some(""),
        Some("garbage"),
        Some("{\"status\":\"Success\"}\n"),
        None,
    ] {
        damage(text);
        let assert = node.install("attach = false\n").failure().code(1);
        assert!(stderr(&assert).contains("attach from true"), "{assert}");
        node.run("install", &[]).success();
        let mended = fs::read_to_string(node.file(".flexvol.init")).unwrap();
        assert_eq!(mended, line, "{text:?}");
        points.add(1);
    }

    // A configuration that is invalid otherwise still tells.
    damage(None);
    fs::write(node.file(".flexvol.toml"), "attach = true\nlargest = 0\n").unwrap();
    let assert = node.install("attach = false\n").failure().code(1);
    assert!(stderr(&assert).contains("attach from true"), "{assert}");

    // Without both, the executable answers with its default.
    fs::remove_file(node.file(".flexvol.toml")).unwrap();
    let assert = node.install("attach = true\n").failure().code(1);
    assert!(stderr(&assert).contains("attach from false"), "{assert}");

    // Nothing tells the previous setting.
    damage(Some(""));
    fs::write(node.file(".flexvol.toml"), "= 1").unwrap();
    let assert = node.install("attach = true\n").success();
    assert!(stderr(&assert).contains("nothing tells"), "{assert}");
    assert_eq!(node.init(), line);
    drop(volume);
}

fn while_mounted(points: &Points) {
    let node = Node::new();
    node.install("attach = false\n").success();
    let before = node.identities();
    let volume = Mounted::of(&node);
    let changed = node.install("attach = true\n").failure().code(1);
    let removed = node.run("uninstall", &[]).failure().code(1);
    let same = node.install("attach = false\n");
    drop(volume);
    for assert in [changed, removed] {
        let said = stderr(&assert);
        assert!(
            said.contains("mounted") && said.contains("kubectl drain"),
            "{said}"
        );
        points.add(1);
    }
    same.success();
    assert_eq!(node.identities(), before);

    // A mount namespace that another process made meanwhile has a copy of the mount until it ends.
    let deadline = Instant::now() + Duration::from_secs(20);
    while node.install("attach = true\n").try_success().is_err() {
        assert!(Instant::now() < deadline, "it is mounted nowhere any more");
        thread::sleep(Duration::from_millis(100));
    }
    node.run("uninstall", &[]).success();
}
