//! Many callouts at once: every answer is one a caller can live with, no state is illegal, and in
//! the end nothing is left.

use crate::sandbox;
use flexvol_testing::{
    Baseline, Call, Driver, Need, Outcome, PersistentVolume, Pod, Points, Random, Sandbox, Test,
    below, budget, request,
};
use std::{collections::BTreeMap, fs, thread, time::Instant};

const NEEDS: &[Need] = &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")];

pub const TESTS: &[Test] = &[Test {
    name: "64 parallel callouts on 8 volumes leave every volume whole",
    needs: NEEDS,
    run: storm,
}];

const VOLUMES: usize = 8;
const CALLOUTS: usize = 64;
const SEEDS: u64 = 20;
const SIZE: u64 = 300 << 20;
const PODS: [&str; 2] = [
    "0b1e55ed-0000-4000-8000-000000000001",
    "0b1e55ed-0000-4000-8000-000000000002",
];

fn storm(points: &Points) {
    let started = Instant::now();
    let sandbox = sandbox();
    let driver = sandbox.install("example.com/loop", false, "");
    let before = Baseline::of(&sandbox);
    let mut seeds = 0;
    while seeds < SEEDS && (seeds == 0 || budget().allows(started)) {
        let seed = budget().seed.wrapping_add(seeds);
        let volumes: Vec<_> = (0..VOLUMES)
            .map(|n| PersistentVolume::provision(&driver, &format!("pv{n}"), "xfs", SIZE))
            .collect();
        batch(&sandbox, &driver, &volumes, seed);
        close(&sandbox, &driver, &volumes);
        before.expect(&sandbox, &format!("after seed {seed}"));
        seeds += 1;
        points.add(u64::try_from(CALLOUTS).unwrap());
    }
    println!("storm: {seeds} of {SEEDS} seeds, {CALLOUTS} callouts at once");
}

/// One callout of the storm, chosen by the seed before anything runs.
#[derive(Debug)]
enum Choice {
    Provision,
    Mount { pod: usize, mode: &'static str },
    Unmount { pod: usize },
    Expand { pod: usize, mebibytes: u64 },
    Delete,
    Capacity,
    NotOurs,
}

fn choose(random: &mut Random) -> Choice {
    let pod = random.below(PODS.len());
    match random.below(20) {
        0..=1 => Choice::Provision,
        2..=8 => Choice::Mount {
            pod,
            mode: ["rw", "rw", "ro"][random.below(3)],
        },
        9..=13 => Choice::Unmount { pod },
        14..=17 => Choice::Expand {
            pod,
            mebibytes: 300 + 4 * u64::try_from(random.below(4)).unwrap(),
        },
        18 => Choice::Delete,
        _ if random.below(2) == 0 => Choice::Capacity,
        _ => Choice::NotOurs,
    }
}

fn batch(sandbox: &Sandbox, driver: &Driver, volumes: &[PersistentVolume], seed: u64) {
    let mut random = Random::new(seed);
    let choices: Vec<_> = (0..CALLOUTS)
        .map(|_| (random.below(VOLUMES), choose(&mut random)))
        .collect();
    let calls: Vec<Call> = thread::scope(|scope| {
        let threads: Vec<_> = choices
            .iter()
            .map(|(volume, choice)| scope.spawn(|| act(sandbox, driver, &volumes[*volume], choice)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    for call in &calls {
        match call.outcome() {
            Outcome::Success => {}
            // A volume in use is not deleted, one that is gone is not mounted, and so on; but a
            // storm is no reason to give up on the kernel, or to find a fault in the driver.
            Outcome::Failure => {
                call.failure();
            }
            outcome => panic!("seed {seed}: {outcome:?}: {call}"),
        }
        assert!(call.took.as_secs() < 60, "seed {seed}: too long: {call}");
    }
    legal(sandbox, volumes, seed);
}

fn act(sandbox: &Sandbox, driver: &Driver, volume: &PersistentVolume, choice: &Choice) -> Call {
    let pod = |pod: usize| Pod::new(sandbox, driver, volume, PODS[pod]);
    match *choice {
        Choice::Provision => driver.call(&["provision", &request(&volume.name, SIZE)]),
        Choice::Mount { pod: n, mode } => driver.call(&pod(n).mount_arguments(mode)),
        Choice::Unmount { pod: n } => driver.call(&["unmount", pod(n).dir().to_str().unwrap()]),
        Choice::Expand { pod: n, mebibytes } => {
            driver.call(&pod(n).expand_arguments(mebibytes << 20, SIZE))
        }
        Choice::Delete => driver.call(&["delete", &volume.json("rw")]),
        Choice::Capacity => driver.call(&["capacity", "{}"]),
        Choice::NotOurs => {
            driver.call(&["unmount", sandbox.path("nothing-here").to_str().unwrap()])
        }
    }
}

/// At rest: one loop at most for each image, it goes by itself, each directory is mounted once,
/// and all mounts of one pod directory's volume are of one device.
fn legal(sandbox: &Sandbox, volumes: &[PersistentVolume], seed: u64) {
    let mut by_image = BTreeMap::new();
    for backing in sandbox.loops() {
        assert!(backing.autoclear, "seed {seed}: a loop that stays");
        let others = by_image.insert(backing.inode, backing);
        assert_eq!(others, None, "seed {seed}: two loops on one image");
    }
    let mut points = BTreeMap::new();
    let mut devices: BTreeMap<String, String> = BTreeMap::new();
    for mount in below(&sandbox.kubelet_root()) {
        let name = mount
            .point
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        assert!(
            volumes.iter().any(|volume| volume.name == name),
            "seed {seed}: {mount:?}"
        );
        let twice = points.insert(mount.point.clone(), ());
        assert_eq!(twice, None, "seed {seed}: mounted twice: {mount:?}");
        let device = devices.entry(name).or_insert_with(|| mount.device.clone());
        assert_eq!(
            *device, mount.device,
            "seed {seed}: one volume, two devices: {mount:?}"
        );
    }
    assert_eq!(
        by_image.len(),
        devices.len(),
        "seed {seed}: loops and mounted volumes"
    );
}

/// Every volume that is left goes as a caller would have it go.
fn close(sandbox: &Sandbox, driver: &Driver, volumes: &[PersistentVolume]) {
    for volume in volumes {
        for uid in PODS {
            let pod = Pod::new(sandbox, driver, volume, uid);
            pod.unmount().success();
        }
        driver.call(&["delete", &volume.json("rw")]).success();
        // A storm may have deleted the volume and then provisioned one of its name again.
        let again = driver
            .call(&["provision", &request(&volume.name, SIZE)])
            .success();
        let again = PersistentVolume::from_reply(&volume.name, "xfs", &again);
        driver.call(&["delete", &again.json("rw")]).success();
    }
    assert_eq!(
        fs::read_dir(sandbox.pool().join("volumes"))
            .unwrap()
            .count(),
        0
    );
}
