//! The life of a volume with kubelet's callouts.

use super::{GROUP, GROWN, NEEDS, SIZE, flexvol, lvm, mappings, run};
use crate::node::{Backend, Node, fill};
use flexvol_testing::{Baseline, Outcome, Points, request, tests};
use std::fs;

tests! {
    "lvm: an unused volume is deactivated where that is wanted", NEEDS => deactivated;
    "lvm: mounting an active volume runs lvm once", NEEDS => cheap;
    "lvm: volumes are unmounted while their group is missing, and nothing else is done", NEEDS
        => missing;
}

fn deactivated(_: &Points) {
    let node = Node::with(Backend::Lvm, "deactivate = true\n");
    // A pool in the same group whose volumes stay active does not have these volumes, nor the other way round.
    super::thin_pool("400M");
    super::flexvol(&["pool", "init", "--group", GROUP, "--thin-pool", "tp0"]);
    let linear = node.install(&format!(
        "[pools.thin]\ngroup = \"{GROUP}\"\nthin_pool = \"tp0\"\ndeactivate = true\n"
    ));
    let stays = linear
        .call(&["provision", &request("stays", SIZE)])
        .success();
    let stays = flexvol_testing::PersistentVolume::from_reply("stays", "xfs", &stays);
    let pod = flexvol_testing::Pod::new(&node.sandbox, &linear, &stays, "stays");
    pod.mount("rw").success();
    let active = mappings().len();
    pod.unmount().success();
    assert_eq!(mappings().len(), active, "deactivated for another pool");
    linear.call(&["delete", &stays.json("rw")]).success();
    lvm(&["lvremove", "-qq", "-y", &format!("{GROUP}/tp0")]);
    node.install(
        "deactivate = true
",
    );
    let volume = node.volume_of("pv", "xfs");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let other = flexvol_testing::Pod::new(&node.sandbox, &node.driver, &volume, "other");
    other.mount("rw").success();
    pod.unmount().success();
    assert_eq!(mappings().len(), 1, "another pod has it");
    other.unmount().success();
    assert_eq!(mappings().len(), 0);
    pod.mount("rw").success();
    pod.unmount().success();
    assert_eq!(mappings().len(), 0);
    node.delete(&volume).success();
}

fn cheap(_: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("pv", "xfs");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    pod.unmount().success();
    let log = node.sandbox.path("execve.log");
    let log = log.to_str().unwrap();
    // Stopping at `execve` alone leaves all other system calls as fast as they are.
    let strace = [
        "/usr/bin/strace",
        "-f",
        "--seccomp-bpf",
        "-qq",
        "-e",
        "trace=execve",
        "-o",
        log,
    ];
    // Within a callout a report is valid for two seconds, which a busy machine exceeds.
    let expect = |at_once: u64, what: &str, arguments: &[String]| {
        let call = node.driver.call_through(&strace, arguments).success();
        let trace = fs::read_to_string(log).unwrap();
        let runs = trace
            .lines()
            .filter(|line| line.contains("sbin/lvm\""))
            .count() as u64;
        let again = call.took.as_secs() / 2;
        assert!(
            (at_once..=at_once + again * at_once).contains(&runs),
            "{what} ran lvm {runs} times in {:?}",
            call.took
        );
    };
    expect(1, "mount", &pod.mount_arguments("rw"));
    expect(1, "mount again", &pod.mount_arguments("rw"));
    let directory = pod.dir().to_str().unwrap().to_owned();
    let unmount = vec!["unmount".to_owned(), directory];
    expect(0, "unmount", &unmount);
}

/// The disks return errors, as after they were removed.
fn missing(points: &Points) {
    let sandbox_disks = flexvol_testing::disks();
    let disk = sandbox_disks[2].to_str().unwrap();
    let (sectors, table) = super::linear_over(disk);
    run("dmsetup", &["create", "pv", "--table", &table]);
    lvm(&["vgcreate", "-qq", "-y", GROUP, "/dev/mapper/pv"]);
    let node = Node::on(Backend::Lvm, crate::sandbox(), false, "");
    let volume = node.volume_of("pv", "ext4");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    fill(pod.dir(), "file");
    let before = Baseline::of(&node.sandbox);

    let load = |table: &str| {
        run("dmsetup", &["suspend", "--noflush", "pv"]);
        run("dmsetup", &["load", "pv", "--table", table]);
        run("dmsetup", &["resume", "pv"]);
    };
    load(&format!("0 {sectors} error"));
    let refused = node.expand(&volume, GROWN).failure();
    assert!(refused.contains("volume group"), "{refused}");
    node.delete(&volume).failure();
    let other = flexvol_testing::Pod::new(&node.sandbox, &node.driver, &volume, "other");
    let refused = other.mount("rw").failure();
    assert!(refused.contains("volume group"), "{refused}");
    points.add(3);
    let unmounted = node.driver.call(&["unmount", pod.dir().to_str().unwrap()]);
    assert!(!pod.dir().join("file").exists(), "{unmounted}");
    assert_eq!(
        node.driver
            .call(&["unmount", pod.dir().to_str().unwrap()])
            .outcome(),
        Outcome::Success
    );

    load(&table);
    fs::remove_dir(pod.dir()).unwrap();
    pod.mount("rw").success();
    assert!(pod.dir().join("file").exists());
    before.expect(&node.sandbox, "the disks are back");
    pod.unmount().success();
    let doctor = flexvol(&["list", "--config", &node.configuration()]);
    assert!(doctor.contains("pv"), "{doctor}");
    node.delete(&volume).success();
}
