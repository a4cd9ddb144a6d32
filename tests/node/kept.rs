//! Volumes that were deleted and are kept for those who take that back.

use crate::{
    by_hand::{complaint, said, said_json},
    dir, executable, lvm, sandbox,
};
use flexvol_testing::{
    Driver, Need, PersistentVolume, Pod, Points, PoolFilesystem, Sandbox, Test, disks,
};
use std::fs;

pub const TESTS: &[Test] = &[
    Test {
        name: "a deleted volume is kept, taken back with its data, and removed after its time",
        needs: &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")],
        run: |points| {
            let sandbox = sandbox();
            let install = |more: &str| {
                sandbox.install(
                    "example.com/loop",
                    false,
                    &format!("reserve = \"64Mi\"\n{more}"),
                )
            };
            kept(&sandbox, "xfs", &install, points);
        },
    },
    Test {
        name: "dir: a deleted volume is kept, taken back with its data, and removed after its time",
        needs: dir::BTRFS,
        run: |points| {
            let filesystem = PoolFilesystem {
                kind: "btrfs",
                mebibytes: 2048,
                quotas: true,
            };
            let sandbox = Sandbox::with_pool_on(&executable(), filesystem);
            kept(
                &sandbox,
                "",
                &|more| dir::install(&sandbox, "dir", more),
                points,
            );
        },
    },
    Test {
        name: "lvm: a deleted volume is kept, taken back with its data, and removed after its time",
        needs: lvm::NEEDS,
        run: |points| {
            lvm::group(lvm::GROUP, &disks()[..2]);
            lvm::flexvol(&["pool", "init", "--group", lvm::GROUP]);
            let sandbox = sandbox();
            kept(
                &sandbox,
                "xfs",
                &|more| lvm::install(&sandbox, false, more),
                points,
            );
        },
    },
];

const SIZE: u64 = 320 << 20;
const DAY: &str = "keep_deleted = \"1d\"\n";

/// The states of all volumes, those with a name first and in order.
fn states(driver: &Driver) -> Vec<String> {
    let list = said_json(driver, &["list", "-o", "json"]);
    let volumes = list["volumes"].as_array().unwrap();
    let state = |volume: &serde_json::Value| volume["state"].as_str().unwrap().to_owned();
    volumes.iter().map(state).collect()
}

/// The volumes that `gc` removes: the node may have locks of others to remove, too.
fn removed(driver: &Driver, arguments: &[&str]) -> String {
    let all = said(driver, arguments);
    let volumes = all.split_inclusive('\n');
    volumes
        .filter(|line| line.contains("which was deleted"))
        .collect()
}

fn kept(
    sandbox: &Sandbox,
    filesystem: &'static str,
    install: &dyn Fn(&str) -> Driver,
    points: &Points,
) {
    let driver = install(DAY);
    let volume = PersistentVolume::provision(&driver, "pv", filesystem, SIZE);
    let options = volume.json("rw");
    let pod = Pod::new(sandbox, &driver, &volume, "a");
    pod.mount("rw").success();
    fs::write(pod.dir().join("file"), "precious").unwrap();
    let busy = driver.call(&["delete", &options]).failure();
    assert!(busy.contains("still mounted"), "{busy}");
    pod.unmount().success();

    // Twice: the caller may not have heard the first answer.
    for _ in 0..2 {
        driver.call(&["delete", &options]).success();
        assert_eq!(states(&driver), ["deleted"]);
    }
    let told = pod.mount("rw").failure();
    assert!(told.contains("flexvol undelete"), "{told}");
    let told = said(&driver, &["explain", volume.handle()]);
    assert!(told.contains("`flexvol undelete"), "{told}");
    assert_eq!(removed(&driver, &["gc"]), "");
    points.add(4);

    // Its name is free, and taken back it needs the name.
    let other = PersistentVolume::provision(&driver, "pv", filesystem, SIZE);
    assert_ne!(other.handle(), volume.handle());
    let told = complaint(&driver, &["undelete", volume.handle()]);
    assert!(told.contains("another volume is called pv now"), "{told}");
    driver.call(&["delete", &other.json("rw")]).success();
    let told = said(&driver, &["undelete", volume.handle()]);
    assert!(told.ends_with("is a volume again\n"), "{told}");
    let told = said(&driver, &["undelete", volume.handle()]);
    assert!(told.contains("was not deleted"), "{told}");
    points.add(4);

    let again = PersistentVolume::provision(&driver, "pv", filesystem, SIZE);
    assert_eq!(again.handle(), volume.handle());
    pod.mount("rw").success();
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), b"precious");
    pod.unmount().success();
    driver.call(&["delete", &options]).success();
    points.add(2);

    // Its time is over at once.
    let driver = install("");
    let would = removed(&driver, &["gc", "--dry-run"]);
    let line = format!("would remove volume {}, which was deleted", volume.handle());
    assert!(would.contains(&line), "{would}");
    assert!(states(&driver).iter().all(|state| state == "deleted"));
    let did = removed(&driver, &["gc"]);
    assert_eq!(did, would.replace("would remove", "removed"));
    assert!(states(&driver).is_empty());
    assert_eq!(removed(&driver, &["gc"]), "");
    let told = complaint(&driver, &["undelete", volume.handle()]);
    assert!(told.contains("there is no such volume"), "{told}");
    driver.call(&["delete", &options]).success();
    points.add(4);
}
