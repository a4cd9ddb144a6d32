//! A data disk that is slow and works.

use crate::node::{Backend, MIB, Node, expect_written, write};
use crate::server::Server;
use flexvol_testing::{Need, Points, tests};
use std::{fs::File, process::Command, time::Duration};

tests! {
    "a disk that is slow and works is waited for",
        &[Need::Root, Need::Filesystem("fuse"), Need::Tool("mkfs.ext4", "e2fsprogs"), Need::Tool("mkfs.xfs", "xfsprogs")] => slow;
}

/// What a pod has written and nobody has seen on the disk.
const MEBIBYTES: usize = 64;

/// As much as is queued then takes more than the half minute for which a disk may be silent.
const SLOW: Duration = Duration::from_millis(800);

fn slow(_: &Points) {
    let mut node = Node::new(Backend::Loop);
    let content = node.sandbox.path("content");
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&content);
    let file = file.unwrap();
    file.set_len(800 * MIB).unwrap();
    let mut mkfs = Command::new("mkfs.ext4");
    let made = mkfs
        .args(["-q", "-F", "-m0", "-E", "nodiscard"])
        .arg(&content);
    assert!(made.status().unwrap().success());
    let server = Server::start(&node.sandbox.path("server"), file);
    node.sandbox.change_disk(&server.file());
    node.sandbox.make_pool(&node.sandbox.pool());
    {
        let volume = node.volume("pv");
        let pod = node.pod(&volume);
        pod.mount("rw").success();
        write(pod.dir(), "before", 1).unwrap();
        nix::unistd::syncfs(File::open(pod.dir()).unwrap()).unwrap();
        std::fs::write(pod.dir().join("file"), vec![7; MEBIBYTES << 20]).unwrap();
        server.slow(SLOW);
        let unmounted = pod.unmount();
        server.slow(Duration::ZERO);
        let unmounted = unmounted.success();
        assert!(unmounted.took > Duration::from_secs(35), "{unmounted}");
        pod.mount("rw").success();
        expect_written(pod.dir(), "before", 1);
        let written = std::fs::read(pod.dir().join("file")).unwrap();
        assert!(written == vec![7; MEBIBYTES << 20]);
        pod.unmount().success();
        node.delete(&volume).success();
    }
    let own = node.sandbox.path("pool.img");
    node.sandbox.change_disk(&own);
}
