//! As many volumes as a node will ever have.

use crate::{
    node::{UID, size_of_filesystem},
    sandbox_with,
};
use flexvol_testing::{
    Baseline, Driver, Need, PersistentVolume, Pod, Points, PoolFilesystem, Sandbox, budget, tests,
};
use std::{fs, time::Instant};

tests! {
    "a thousand volumes live on one node, and nothing is left of them", &[Need::Root, Need::Tool("mkfs.ext4", "e2fsprogs"), Need::Tool("resize2fs", "e2fsprogs")]
        => thousand;
}

const VOLUMES: usize = 1000;
const SIZE: u64 = 16 << 20;
const GROWN: u64 = 20 << 20;

struct Crowd {
    sandbox: Sandbox,
    driver: Driver,
    volumes: Vec<PersistentVolume>,
}

impl Crowd {
    /// Runs `act` for each volume, in order.
    fn each(&self, mut act: impl FnMut(&PersistentVolume, &Pod<'_>)) {
        for volume in &self.volumes {
            act(volume, &Pod::new(&self.sandbox, &self.driver, volume, UID));
        }
    }

    /// Mounts all at once. Each has a device of its own, and its own file.
    fn mount(&self) {
        self.each(|volume, pod| {
            pod.mount("rw").success();
            let file = pod.dir().join("name");
            if !file.exists() {
                fs::write(&file, &volume.name).unwrap();
            }
        });
        assert_eq!(self.sandbox.loops().len(), self.volumes.len());
        self.each(|volume, pod| {
            let name = fs::read_to_string(pod.dir().join("name")).unwrap();
            assert_eq!(name, volume.name);
        });
    }

    /// The size of each file system, as `df` shows it.
    fn sizes(&self) -> Vec<u64> {
        let mut sizes = Vec::new();
        self.each(|_, pod| {
            sizes.push(size_of_filesystem(pod.dir()));
        });
        sizes
    }

    fn unmount(&self) {
        self.each(|_, pod| drop(pod.unmount().success()));
    }
}

fn thousand(points: &Points) {
    let sandbox = sandbox_with(PoolFilesystem {
        mebibytes: 32 << 10,
        ..PoolFilesystem::default()
    });
    let driver = sandbox.install("example.com/loop", false, "filesystem = \"ext4\"");
    let before = Baseline::of(&sandbox);
    let mut crowd = Crowd {
        sandbox,
        driver,
        volumes: Vec::new(),
    };
    // A volume's whole life takes this many times as long as its creation.
    let started = Instant::now();
    while crowd.volumes.len() < VOLUMES && budget().allows_part(started, 20) {
        let name = format!("pv{}", crowd.volumes.len());
        let volume = PersistentVolume::provision(&crowd.driver, &name, "ext4", SIZE);
        crowd.volumes.push(volume);
    }
    crowd.mount();
    let small = crowd.sizes();
    crowd.unmount();
    // Unmounted, because this kernel may refuse to grow a mounted ext4.
    crowd.each(|_, pod| {
        let call = crowd.driver.call(&pod.expand_arguments(GROWN, SIZE));
        call.success();
    });
    crowd.mount();
    for ((volume, before), after) in crowd.volumes.iter().zip(small).zip(crowd.sizes()) {
        assert!(after > before, "{}: {after} after {before}", volume.name);
    }
    crowd.unmount();
    crowd.each(|volume, _| {
        crowd.driver.call(&["delete", &volume.json("rw")]).success();
    });
    before.expect(&crowd.sandbox, "all deleted");
    let count = u64::try_from(crowd.volumes.len()).unwrap();
    points.report(
        "volumes on one node",
        count,
        VOLUMES,
        "made, mounted together, grown, mounted, deleted",
    );
}
