//! Disks with the UUID of a volume's file system. Kernels before 6.7 confuse them, which is tested in the virtual
//! machine.

use crate::{
    node::MIB,
    sandbox,
    strangers::{Attached, BTRFS, run},
};
use flexvol_testing::{Outcome, PersistentVolume, Pod, Points, below, tests};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    process::Command,
};

tests! {
    "a btrfs volume is mounted from its own disk, whatever another disk says that it is", BTRFS
        => another_disk;
    "a btrfs volume is mounted by its pods, and deleted, while a copy of it is mounted", BTRFS
        => copy;
}

/// The UUID of the btrfs in a file, which every container can read in /sys/fs/btrfs.
fn uuid_in(image: &File) -> String {
    let mut bytes = [0; 16];
    image.read_exact_at(&mut bytes, 0x10020).unwrap();
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    parts.join("-")
}

fn copy(points: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("flexvol.test/copy", false, "reserve = \"0%\"");
    let volume = PersistentVolume::provision(&driver, "data", "btrfs", 300 * MIB);
    let (one, two) = (
        Pod::new(&sandbox, &driver, &volume, "one"),
        Pod::new(&sandbox, &driver, &volume, "two"),
    );
    one.mount("rw").success();
    fs::write(one.dir().join("file"), "old").unwrap();
    one.unmount().success();

    // A backup that its owner has mounted.
    let file = sandbox.path("backup");
    fs::copy(volume.image(&sandbox), &file).unwrap();
    let backup = Attached::new(&file);
    let place = sandbox.path("elsewhere");
    fs::create_dir(&place).unwrap();
    let elsewhere = place.to_str().unwrap();
    run("mount", &["-t", "btrfs", backup.path(), elsewhere]);

    // Kernels before 6.7 take both for one.
    let first = one.mount("rw");
    if first.outcome() == Outcome::Success {
        fs::write(one.dir().join("file"), "new").unwrap();
        for mode in ["rw", "rw", "ro"] {
            one.mount("rw").success();
            two.mount(mode).success();
            assert_eq!(fs::read(two.dir().join("file")).unwrap(), b"new");
        }
        assert_eq!(fs::read(place.join("file")).unwrap(), b"old");
        let used = driver.call(&["delete", &volume.json("rw")]).failure();
        assert!(used.contains("still mounted"), "{used}");
        driver
            .call(&one.expand_arguments(400 * MIB, 300 * MIB))
            .success();
        two.unmount().success();
        one.unmount().success();
        points.add(1);
    } else {
        let why = first.failure();
        assert!(why.contains("the volume's device alone"), "{why}");
    }
    assert_eq!(below(&sandbox.kubelet_root()), []);

    driver.call(&["delete", &volume.json("rw")]).success();
    assert!(!volume.image(&sandbox).exists());
    run("umount", &[elsewhere]);
}

fn another_disk(points: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("flexvol.test/same", false, "reserve = \"0%\"");
    let volume = PersistentVolume::provision(&driver, "data", "btrfs", 300 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    fs::write(pod.dir().join("file"), "ours").unwrap();
    pod.unmount().success();
    let uuid = uuid_in(&File::open(volume.image(&sandbox)).unwrap());

    // Written elsewhere by the owner of a raw disk, with a higher generation than the volume.
    let file = sandbox.path("other-disk");
    File::create(&file).unwrap().set_len(300 * MIB).unwrap();
    run("mkfs.btrfs", &["-q", "-U", &uuid, file.to_str().unwrap()]);
    let other = Attached::new(&file);
    let place = sandbox.path("elsewhere");
    fs::create_dir(&place).unwrap();
    let elsewhere = place.to_str().unwrap();
    run("mount", &["-t", "btrfs", other.path(), elsewhere]);
    fs::write(place.join("file"), "theirs").unwrap();
    for at in 0..80 {
        fs::write(place.join("more"), [at]).unwrap();
        run("btrfs", &["filesystem", "sync", elsewhere]);
    }
    run("umount", &[elsewhere]);

    // As udev does for every new disk.
    let scan = || run("btrfs", &["device", "scan", other.path()]);
    let is_ours = || fs::read(pod.dir().join("file")).unwrap() == b"ours";
    let grow = |mebibytes: u64| pod.expand_arguments(mebibytes * MIB, 300 * MIB);
    scan();
    pod.mount("rw").success();
    assert!(is_ours());
    pod.unmount().success();
    points.add(1);

    scan();
    driver.call(&grow(400)).success();
    scan();
    pod.mount("ro").success();
    assert!(is_ours());
    pod.unmount().success();
    points.add(2);

    pod.mount("rw").success();
    assert!(is_ours());
    // Kernels that confuse them refuse the scan now.
    let mut again = Command::new("btrfs");
    again.args(["device", "scan", other.path()]);
    let _ = again.output().unwrap();
    driver.call(&grow(450)).success();
    pod.unmount().success();
    driver.call(&["delete", &volume.json("rw")]).success();
}
