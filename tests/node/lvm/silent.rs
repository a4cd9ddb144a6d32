//! A disk of the group that does not answer.

use super::{GROUP, NEEDS, group, linear_over, lvm, output, run};
use crate::{
    dead_server::Server,
    node::{Backend, MIB, Node},
};
use flexvol_host::lvm::sync;
use flexvol_testing::{Need, Points, disks, eventually, patience, tests};
use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

tests! {
    "lvm: at a disk that does not answer one process of lvm stays, and one flush", NEEDS => one;
    "lvm: a verb that waits for a volume's disk leaves one process, however often it is repeated", SERVED
        => volume;
}

const SERVED: &[Need] = &[
    Need::Root,
    Need::DeviceMapper,
    Need::Disks,
    Need::Filesystem("fuse"),
    Need::Tool("lvm", "lvm2"),
    Need::Tool("dmsetup", "dmsetup"),
    Need::Tool("mkfs.ext4", "e2fsprogs"),
];

/// Counts the processes of lvm, and of the driver, which has the same name. One that waits while it ends has no
/// executable any more.
fn processes() -> usize {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let names = all.filter_map(|it| fs::read_to_string(it.path().join("comm")).ok());
    names.filter(|name| name.trim() == "lvm").count()
}

fn one(points: &Points) {
    let (_, table) = linear_over(disks()[0].to_str().unwrap());
    run("dmsetup", &["create", "silent", "--table", &table]);
    let disk = "/dev/mapper/silent";
    group(GROUP, &[PathBuf::from(disk)]);
    let node = Node::on(Backend::Lvm, crate::sandbox(), false, "");
    let capacity = || node.driver.call(&["capacity", "{}"]);
    capacity().success();
    run("dmsetup", &["suspend", "--nolockfs", "silent"]);
    // Killed, lvm waits for its reads.
    for said in ["s (lvm waits in ", "has not answered an earlier lvm"] {
        let refused = capacity().failure();
        assert!(refused.contains(said), "{refused}");
        assert_eq!(processes(), 1, "{refused}");
        points.add(1);
    }
    let driver = node.driver.executable().to_str().unwrap();
    for verb in ["list", "gc", "list"] {
        let told = output(driver, &[verb]);
        let told = String::from_utf8([told.stdout, told.stderr].concat()).unwrap();
        assert!(told.contains("an earlier lvm"), "{verb}: {told}");
        assert_eq!(processes(), 1, "{verb}: {told}");
        points.add(1);
    }
    for said in ["did not answer", "an earlier flush"] {
        let error = sync(&[disk.to_owned()]).unwrap_err().report();
        assert!(error.contains(said), "{error}");
        points.add(1);
    }
    run("dmsetup", &["resume", "silent"]);
    eventually(Duration::from_secs(20), "lvm to end", || processes() == 0);
    capacity().success();
    sync(&[disk.to_owned()]).unwrap();
    points.add(1);
}

/// LVM's own part of the disk answers, and the rest not.
fn volume(points: &Points) {
    let sandbox = crate::sandbox();
    let content = tempfile::tempfile_in(sandbox.root()).unwrap();
    content.set_len(600 * MIB).unwrap();
    let server = Server::start(&sandbox.path("server"), content);
    let image = server.image();
    let rest = run("losetup", &["-f", "--show", image.to_str().unwrap()]);
    let (rest, disk) = (rest.trim(), disks()[0].display().to_string());
    let (own, sectors) = (2048, 600 * MIB / 512);
    let table = format!("0 {own} linear {disk} {own}\\n{own} {sectors} linear {rest} 0\\n");
    run(
        "sh",
        &["-c", &format!("printf '{table}' | dmsetup create pv")],
    );
    let sees = "devices { filter = [ \"a|^/dev/mapper/pv$|\", \"r|.*|\" ] }";
    fs::write("/etc/lvm/lvm.conf", sees).unwrap();
    group(GROUP, &[PathBuf::from("/dev/mapper/pv")]);
    let node = Node::on(Backend::Lvm, sandbox, false, "");
    let volume = node.volume_of("pv", "ext4");
    node.written(&volume);
    // Revived before the node goes.
    let server = server;
    run("sync", &[]);
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    server.die();
    let driver = node.driver.executable().to_str().unwrap();
    let list = || {
        let began = Instant::now();
        let told = output(driver, &["list"]);
        let told = String::from_utf8([told.stdout, told.stderr].concat()).unwrap();
        (told, began.elapsed())
    };
    for count in 0..3 {
        let (told, took) = list();
        assert!(told.contains("does not answer"), "{told}");
        assert!(count == 0 || took < Duration::from_secs(8) * patience());
        assert_eq!(processes(), 1, "{told}");
        points.add(1);
    }
    server.revive();
    eventually(Duration::from_secs(20), "the verb to end", || {
        processes() == 0
    });
    let (told, _) = list();
    assert!(told.contains("ready"), "{told}");
    node.delete(&volume).success();
    points.add(1);
    lvm(&["vgchange", "-qq", "-an", GROUP]);
    run("dmsetup", &["remove", "pv"]);
    run("losetup", &["-d", rest]);
}
