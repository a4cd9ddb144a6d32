//! Missing programs and resources of a node, and obstacles.

use super::says;
use crate::{
    node::{Backend, LOOP, MIB, Node},
    story::stories,
};
use flexvol_testing::{Driver, Outcome, Points, json, request, tests};
use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, symlink},
    process::Command,
};

stories! {
    STORIES:
    "a directory that is in use is not mounted on", [loop btrfs] => directories;
    "a pool that is read-only, gone or unknown is named", [loop btrfs] => pools;
    "no stdin, no environment and no log are no reason to fail", [loop btrfs] => bare_process;
}

tests! {
    "a full pool refuses, and its neighbours keep writing", LOOP => full_pool;
    "what the node lacks is named", LOOP => lacking_node;
}

const SIZE: u64 = 300 * MIB;

fn directories(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    let volume = node.formatted("pv");
    let pod = node.pod(&volume);
    let line = pod.mount_arguments("rw");
    fs::write(pod.dir().join("precious"), "data").unwrap();
    node.refuses(&line, &["empty"], points);
    fs::remove_file(pod.dir().join("precious")).unwrap();

    let status = Command::new("mount")
        .args(["-t", "tmpfs", "none"])
        .arg(pod.dir())
        .status();
    assert!(status.unwrap().success());
    node.refuses(&line, &[], points);
    assert!(
        Command::new("umount")
            .arg(pod.dir())
            .status()
            .unwrap()
            .success()
    );

    fs::remove_dir(pod.dir()).unwrap();
    let elsewhere = node.sandbox.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, pod.dir()).unwrap();
    node.refuses(&line, &[], points);
    fs::remove_file(pod.dir()).unwrap();
    fs::write(pod.dir(), "a file").unwrap();
    node.refuses(&line, &[], points);
    fs::remove_file(pod.dir()).unwrap();
    // A directory that does not exist is not mounted.
    let gone = ["unmount", pod.dir().to_str().unwrap()];
    node.driver.call(&gone).success();
}

fn full_pool(points: &Points) {
    const RESERVE: u64 = 64 * MIB;
    let node = Node::with(Backend::Loop, "reserve = \"64Mi\"");
    let volume = node.formatted("pv");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let filler = node.sandbox.fill_disk(RESERVE + 20 * MIB);
    // The name exists already, so that the repeated call finds it: a symbolic link without blocks.
    let call = node.driver.call(&["provision", &request("new", SIZE)]);
    says(&call, &["300Mi"]);
    assert_eq!(call.text("errorClass"), "exhausted");
    node.refuses(
        &pod.expand_arguments(SIZE + 40 * MIB, SIZE),
        &["340Mi"],
        points,
    );
    // Preallocated blocks of a volume cannot be taken by others.
    let file = pod.dir().join("file");
    fs::write(&file, vec![7; 100 << 20]).unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    let neighbour = File::create(node.sandbox.disk().join("neighbour")).unwrap();
    neighbour.write_all_at(&vec![7; 40 << 20], 0).unwrap();
    neighbour.sync_all().unwrap();
    fs::remove_file(filler).unwrap();
    node.driver
        .call(&pod.expand_arguments(SIZE + 40 * MIB, SIZE))
        .success();
    pod.unmount().success();
}

fn pools(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    let volume = node.formatted("pv");
    let pod = node.pod(&volume);
    let line = pod.mount_arguments("rw");
    let elsewhere = json([
        ("kubernetes.io/pvOrVolumeName", "new"),
        ("pool", "elsewhere"),
        ("requestBytes", "314572800"),
    ]);
    node.refuses(&["provision", &elsewhere], &["elsewhere"], points);

    let disk = node.sandbox.disk();
    let remount = |options: &str| {
        let status = Command::new("mount")
            .args(["-o", options])
            .arg(&disk)
            .status();
        assert!(status.unwrap().success(), "mount -o {options}");
    };
    remount("remount,ro");
    node.refuses(&["provision", &request("new", node.size())], &[], points);
    node.refuses(&["delete", &volume.json("rw")], &[], points);
    node.refuses(&["capacity", "{}"], &["takes no writes"], points);
    node.refuses(&line, &[], points);
    remount("remount,rw");

    let id = node.sandbox.pool().join(".flexvol-pool");
    let aside = node.sandbox.disk().join("id");
    fs::rename(&id, &aside).unwrap();
    let lines: [&[&str]; 3] = [
        &["provision", &request("new", node.size())],
        &["delete", &volume.json("rw")],
        &["capacity", "{}"],
    ];
    for line in lines {
        node.refuses(line, &["pool", "not mounted"], points);
    }
    node.refuses(&line, &["pool", "not mounted"], points);
    fs::rename(&aside, &id).unwrap();
    pod.mount("rw").success();
    pod.unmount().success();
}

fn lacking_node(points: &Points) {
    let node = Node::new(Backend::Loop);
    let volume = node.volume("pv");
    let pod = node.pod(&volume);
    let line = pod.mount_arguments("rw");
    let without = ["/usr/bin/setpriv", "--bounding-set", "-sys_admin"];
    let call = |driver: &Driver| driver.call_through(&without, &line);
    node.refuses_in(call, &["CAP_SYS_ADMIN"], points);
    // The program exists but cannot be executed.
    let nothing = "mount --bind /dev/null /usr/sbin/mkfs.xfs";
    let call = |driver: &Driver| driver.call_where(nothing, &line);
    node.refuses_in(call, &["mkfs.xfs", "xfsprogs"], points);
    pod.mount("rw").success();
    pod.unmount().success();
}

fn bare_process(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    let volume = node.volume("pv");
    let pod = node.pod(&volume);
    let line = pod.mount_arguments("rw");
    for (script, argv) in [
        ("exec \"$@\" <&-", &line),
        ("cd /proc/self; exec \"$@\" <&-", &line),
    ] {
        let call = node
            .driver
            .call_through(&["/bin/sh", "-c", script, "sh"], argv);
        assert_eq!(call.outcome(), Outcome::Success, "{script}: {call}");
        points.add(1);
    }
    pod.unmount().success();
    let broken = node
        .driver
        .call_through(&["/bin/sh", "-c", "exec \"$@\" <&-", "sh"], &["mount"]);
    says(&broken, &[]);
}
