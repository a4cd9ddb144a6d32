//! Several pools of one driver.

use super::{SIZE, on_each};
use crate::node::{Backend, Node};
use flexvol_testing::{Need, PersistentVolume, Points, Test, request, tests};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::{
    fs::{self, File},
    os::{fd::AsRawFd, unix::fs::symlink},
    path::PathBuf,
};

pub const TESTS: &[Test] = on_each![
    "two pools on one file system promise nothing twice" => beside,
];

tests! {
    SERVED:
    "dir on btrfs: a pool whose server is gone stops no other pool", &[Need::Root, Need::Filesystem("btrfs"), Need::Filesystem("fuse"), Need::Tool("mkfs.btrfs", "btrfs-progs")]
        => elsewhere;
}

fn beside(node: &Node, points: &Points) {
    let volume = node.volume("pv");
    let other = node.sandbox.disk().join("other");
    node.sandbox.make_pool(&other);
    let both = |more: &str| {
        let pool = node.sandbox.pool();
        let text = format!(
            "backend = \"dir\"\n[pools.default]\npath = {pool:?}\n{more}\n[pools.other]\npath = {other:?}\n{more}\n"
        );
        node.sandbox.install_with("example.com/both", &text)
    };
    let driver = both("");
    let request = request("more", SIZE);
    let calls = [
        vec!["provision".to_owned(), request.clone()],
        vec!["capacity".to_owned(), "{}".to_owned()],
        node.pod(&volume).expand_arguments(2 * SIZE, SIZE),
    ];
    for call in &calls {
        let refused = driver.call(call).failure();
        assert!(refused.contains("same file system"), "{call:?}: {refused}");
        points.add(1);
    }
    // An existing volume can be used and deleted.
    let pod = flexvol_testing::Pod::new(&node.sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    pod.unmount().success();
    let driver = both("overcommit = true");
    let more = driver.call(&["provision", &request]).success();
    let more = PersistentVolume::from_reply("more", "", &more);
    for volume in [&more, &volume] {
        driver.call(&["delete", &volume.json("rw")]).success();
    }
    points.add(2);
}

/// A FUSE file system whose server never answers: every access blocks until this is dropped.
struct Unanswered {
    _server: File,
    dir: PathBuf,
}

impl Unanswered {
    fn at(dir: PathBuf) -> Unanswered {
        fs::create_dir_all(&dir).unwrap();
        let server = File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .unwrap();
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            server.as_raw_fd()
        );
        let flags = MsFlags::empty();
        mount(
            Some("gone"),
            &dir,
            Some("fuse"),
            flags,
            Some(options.as_str()),
        )
        .unwrap();
        Unanswered {
            _server: server,
            dir,
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        // Without a path lookup in it, which would ask the server.
        let _ = umount2(&self.dir, MntFlags::MNT_DETACH);
    }
}

fn elsewhere(points: &Points) {
    let node = Node::new(Backend::Dir("btrfs"));
    let disk = node.sandbox.disk();
    let gone = Unanswered::at(node.sandbox.path("served"));
    let other = disk.join("other");
    node.sandbox.make_pool(&other);
    let links = ["to-served", "to-other", "to-itself"].map(|name| disk.join(name));
    let [to_served, to_other, to_itself] = &links;
    symlink(gone.dir.join("pool"), to_served).unwrap();
    symlink("other", to_other).unwrap();
    symlink(to_itself, to_itself).unwrap();
    // On a third file system, as /var often is: neither the root's nor the pool's.
    let third = node.sandbox.path("third");
    fs::create_dir(&third).unwrap();
    let none = None::<&str>;
    mount(Some("third"), &third, Some("tmpfs"), MsFlags::empty(), none).unwrap();
    let by_third = third.join("link");
    symlink(&other, &by_third).unwrap();
    fs::create_dir(third.join("pool")).unwrap();
    for (path, refused) in [
        (&gone.dir.join("pool"), None),
        (to_served, None),
        (&disk.join("missing"), None),
        (&third.join("pool"), None),
        (&third.join("missing"), None),
        (to_other, Some("on the same file system")),
        (&by_third, Some("on the same file system")),
        (to_itself, Some("cannot tell whether another pool")),
    ] {
        let pool = node.sandbox.pool();
        let text = format!(
            "backend = \"dir\"\n[pools.default]\npath = {pool:?}\n[pools.other]\npath = {path:?}\n"
        );
        let driver = node.sandbox.install_with("example.com/both", &text);
        let limit = ["/usr/bin/timeout", "-s", "KILL", "30"];
        let call = driver.call_through(&limit, &["capacity", r#"{"pool":"default"}"#]);
        match refused {
            None => drop(call.success()),
            Some(why) => assert!(call.failure().contains(why), "{path:?}: {call}"),
        }
        points.add(1);
    }
    umount2(&third, MntFlags::MNT_DETACH).unwrap();
}
