//! A disk of the group that does not answer.

use super::{GROUP, NEEDS, group, linear_over, output, run};
use crate::node::{Backend, Node};
use flexvol_host::lvm::sync;
use flexvol_testing::{Points, disks, eventually, tests};
use std::{fs, path::PathBuf, time::Duration};

tests! {
    "lvm: at a disk that does not answer one process of lvm stays, and one flush", NEEDS => one;
}

/// Counts the processes of this name.
fn processes(name: &str) -> usize {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let names = all.filter_map(|it| fs::read_to_string(it.path().join("comm")).ok());
    names.filter(|comm| comm.trim() == name).count()
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
    for said in ["did not end within", "has not answered an earlier lvm"] {
        let refused = capacity().failure();
        assert!(refused.contains(said), "{refused}");
        assert_eq!(processes("lvm"), 1, "{refused}");
        points.add(1);
    }
    let driver = node.driver.executable().to_str().unwrap();
    for verb in ["list", "gc", "list"] {
        let told = output(driver, &[verb]);
        let told = String::from_utf8([told.stdout, told.stderr].concat()).unwrap();
        assert!(told.contains("an earlier lvm"), "{verb}: {told}");
        assert_eq!(processes("lvm"), 1, "{verb}: {told}");
        points.add(1);
    }
    for said in ["did not answer", "an earlier flush"] {
        let error = sync(&[disk.to_owned()]).unwrap_err().report();
        assert!(error.contains(said), "{error}");
        points.add(1);
    }
    run("dmsetup", &["resume", "silent"]);
    eventually(Duration::from_secs(20), "lvm to end", || {
        processes("lvm") == 0
    });
    capacity().success();
    sync(&[disk.to_owned()]).unwrap();
    points.add(1);
}
