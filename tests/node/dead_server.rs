//! A loop device of somebody else's, whose file is on a server that answers nothing any more.

use crate::{
    by_hand::said,
    node::{Backend, Node},
    server::Server,
    strangers::Attached,
};
use flexvol_testing::{Need, Points, tests};
use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
};

tests! {
    "a loop device on a server that has died stops no volume, also with the number that a volume had",
        &[Need::Root, Need::Filesystem("fuse"), Need::Tool("losetup", "mount"), Need::Tool("mkfs.xfs", "xfsprogs")] => stale_hint;
}

fn stale_hint(points: &Points) {
    for backend in [Backend::Loop, Backend::HelloBlock] {
        beside(&Node::new(backend), points);
    }
}

fn beside(node: &Node, points: &Points) {
    let [volume, deleted] = ["pv", "deleted"].map(|name| node.volume(name));
    node.delete(&deleted).success();
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    pod.unmount().success();

    let content = tempfile::tempfile_in(node.sandbox.root()).unwrap();
    content.set_len(64 << 20).unwrap();
    let server = Server::start(&node.sandbox.path("server"), content);
    let attached = Attached::new(&server.file());
    // What the volume's lock remembers is the number that it had last.
    let lock = Path::new("/run/flexvol/lock").join(volume.id());
    let number = attached.path().trim_start_matches("/dev/loop");
    let lock = OpenOptions::new().write(true).open(lock).unwrap();
    lock.write_all_at(format!("{number:<10}\n").as_bytes(), 0)
        .unwrap();
    let dead = server.dies();
    pod.mount("rw").success();
    node.expand(&volume, node.size() + (16 << 20)).success();
    pod.unmount().success();
    // As a backup does it, which might be a device under any name.
    let reader = File::open(volume.image(&node.sandbox)).unwrap();
    pod.mount("rw").success();
    pod.unmount().success();
    drop(reader);
    node.delete(&deleted).success();
    // The other driver has no verbs.
    let verbs: &[&str] = match node.backend {
        Backend::Loop => &["list", "gc"],
        _ => &[],
    };
    for verb in verbs {
        said(&node.driver, &[verb]);
    }
    points.add(5);
    drop(dead);
    drop(attached);
    node.delete(&volume).success();
}
