//! Many concurrent callouts, while the driver is upgraded: some order of them must explain every reply, no state may
//! be illegal, and nothing may be left at the end.

mod at_rest;
mod model;

use crate::{
    lvm,
    node::{Backend, Node},
    story::stories,
};
use flexvol_testing::{
    Call, Outcome, PersistentVolume, Points, Progress, Random, below, budget, disks, patience,
    request, tests,
};
use model::{Answered, Asked, PODS, State, expect_refused, explain};
use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

stories! {
    STORIES:
    "64 callouts at once on 20 volumes have an order that explains every answer", [loop btrfs xfs]
        => |backend, points| storm(backend, HERE, points);
    "24 callouts, 8 at once, on 6 volumes have an order that explains every answer", [lvm]
        => |backend, points| storm(backend, IN_LVM, points);
}

tests! {
    "a history that cannot have been is refused" => |_| model::refuses_contradictions();
}

/// The size of a storm.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    volumes: usize,
    callouts: usize,
    /// Number of concurrent callouts.
    at_once: usize,
}

const HERE: Scale = Scale {
    volumes: 20,
    callouts: 64,
    at_once: 64,
};

/// In the virtual machine `lvm` takes twenty times as long, but its lock timeouts are the same.
const IN_LVM: Scale = Scale {
    volumes: 6,
    callouts: 24,
    at_once: 8,
};

/// How long a callout waits for a volume's lock.
const LOCK_DEADLINE: Duration = Duration::from_secs(60);
const SEEDS: u64 = 100;
const SIZE: u64 = 300 << 20;
const UIDS: [&str; PODS] = [
    "0b1e55ed-0000-4000-8000-000000000001",
    "0b1e55ed-0000-4000-8000-000000000002",
];

/// Number of upgrades of the driver during a storm.
const UPGRADES: usize = 4;

fn storm(backend: Backend, scale: Scale, points: &Points) {
    let name = &format!("storm, {backend:?}");
    let started = Instant::now();
    if backend.is_lvm() {
        lvm::group(lvm::GROUP, &disks());
    }
    // Space for six gigabytes of volumes and little more: everything that a hundred storms write stays in memory.
    let node = Node::on(backend, backend.sandbox(8 << 10), false, "");
    let before = node.inventory().without_promises();
    let all = usize::try_from(SEEDS).unwrap();
    let (mut seeds, mut progress) = (0, Progress::default());
    while seeds < SEEDS && (seeds == 0 || budget().allows(started)) {
        let seed = budget().seed.wrapping_add(seeds);
        let volumes: Vec<_> = (0..scale.volumes)
            .map(|n| provision(&node, &format!("pv{n}")))
            .collect();
        batch(&node, scale, &volumes, seed);
        close(&node, &volumes);
        node.expect(&before, &format!("after seed {seed}"));
        seeds += 1;
        progress.print(name, seeds, all);
    }
    let Scale {
        volumes,
        callouts,
        at_once,
    } = scale;
    let what = format!(
        "storms of {callouts} callouts, {at_once} at once, on {volumes} volumes, the driver exchanged {UPGRADES} times in each"
    );
    points.report(name, seeds, all, &what);
}

/// The file system of the volumes.
fn filesystem(node: &Node) -> &'static str {
    match node.backend.is_directory() {
        true => "",
        false => "xfs",
    }
}

fn provision(node: &Node, name: &str) -> PersistentVolume {
    PersistentVolume::provision(&node.driver, name, filesystem(node), SIZE)
}

/// One callout of the storm. The seed determines all of them in advance.
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

/// A callout that was made.
struct Made<'a> {
    volume: usize,
    choice: &'a Choice,
    call: Call,
    began: Instant,
    ended: Instant,
}

fn choose(random: &mut Random) -> Choice {
    let pod = random.below(PODS);
    match random.below(20) {
        0..=1 => Choice::Provision,
        2..=8 => Choice::Mount {
            pod,
            mode: ["rw", "rw", "ro"][random.below(3)],
        },
        9..=13 => Choice::Unmount { pod },
        14..=16 => Choice::Expand {
            pod,
            mebibytes: 300 + 4 * u64::try_from(random.below(4)).unwrap(),
        },
        17..=18 => Choice::Delete,
        _ if random.below(2) == 0 => Choice::Capacity,
        _ => Choice::NotOurs,
    }
}

/// The last two volumes, whose marks are of a newer driver. This driver must not change them.
fn newer(volumes: &[PersistentVolume]) -> &[PersistentVolume] {
    &volumes[volumes.len() - 2..]
}

fn batch(node: &Node, scale: Scale, volumes: &[PersistentVolume], seed: u64) {
    let mut random = Random::new(seed);
    let choices: Vec<_> = (0..scale.callouts)
        .map(|_| (random.below(volumes.len()), choose(&mut random)))
        .collect();
    let old: Vec<_> = newer(volumes)
        .iter()
        .map(|volume| node.mark(volume, |mark| mark.replacen("=1:", "=2:", 1)))
        .collect();
    let calls: Vec<Made<'_>> = thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..UPGRADES {
                drop(node.install(""));
                thread::sleep(Duration::from_millis(50));
            }
        });
        let at_once = scale.at_once;
        let threads = (0..at_once).map(|first| {
            let choices = choices.iter().skip(first).step_by(at_once);
            scope.spawn(move || -> Vec<_> {
                let calls = choices.map(|(volume, choice)| {
                    let began = Instant::now();
                    let call = act(node, &volumes[*volume], choice);
                    Made {
                        volume: *volume,
                        choice,
                        call,
                        began,
                        ended: Instant::now(),
                    }
                });
                calls.collect()
            })
        });
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    let mut histories: BTreeMap<usize, Vec<Answered>> = BTreeMap::new();
    for Made {
        volume,
        choice,
        call,
        began,
        ended,
    } in &calls
    {
        let success = match call.outcome() {
            Outcome::Success => true,
            // A volume in use is not deleted, a deleted one is not mounted, and so on. But load is no reason for
            // the kernel to time out, or for an internal error.
            Outcome::Failure => {
                call.failure();
                false
            }
            outcome => panic!("seed {seed}: {outcome:?}: {call}"),
        };
        let limit = LOCK_DEADLINE * patience();
        assert!(call.took < limit, "seed {seed}: too long: {call}");
        // Nobody but another callout on the volume may have had its lock.
        let deadline = *began + LOCK_DEADLINE;
        let had_by_another = calls.iter().any(|other| {
            let is_on_it = other.volume == *volume && !std::ptr::eq(&raw const other.call, call);
            is_on_it && (other.began..=other.ended).contains(&deadline)
        });
        let gave_up = !success
            && had_by_another
            && call.took >= LOCK_DEADLINE
            && call
                .failure()
                .contains("another operation on this volume is still running");
        if let Some(asked) = asked(choice, call, &volumes[*volume]) {
            histories.entry(*volume).or_default().push(Answered {
                asked,
                success,
                gave_up,
                began: *began,
                ended: *ended,
            });
        }
    }
    let sizes = node.sizes();
    let refused = volumes.len() - newer(volumes).len();
    for (volume, history) in histories {
        let pv = &volumes[volume];
        if volume >= refused {
            expect_refused(&history, seed);
            continue;
        }
        let from = State {
            mebibytes: SIZE >> 20,
            formatted: filesystem(node).is_empty(),
            ..State::default()
        };
        let ends = explain(from, &history);
        let told = || -> String {
            let of_this = |call: &&Call| {
                let (json, path) = (format!("\"{}\"", pv.name), format!("/{}", pv.name));
                let mut arguments = call.argv.iter();
                arguments.any(|word| word.contains(&json) || word.ends_with(&path))
            };
            let calls = calls.iter().map(|made| &made.call).filter(of_this);
            calls.map(|call| format!("  {call}\n")).collect()
        };
        assert!(
            !ends.is_empty(),
            "seed {seed}: no order explains what {} answered:\n{}",
            pv.name,
            told()
        );
        let is = state(node, pv, &sizes);
        let fits = ends.iter().any(|end| agrees(end, &is));
        assert!(
            fits,
            "seed {seed}: {} is {is:?}, and not one of {ends:?}:
{}",
            pv.name,
            told()
        );
    }
    for (volume, old) in newer(volumes).iter().zip(old) {
        node.mark(volume, |_| old);
    }
    legal(node, volumes, seed);
}

/// The request to a volume, in terms of the model.
fn asked(choice: &Choice, call: &Call, volume: &PersistentVolume) -> Option<Asked> {
    Some(match *choice {
        Choice::Provision => Asked::Provision {
            is_this: call
                .output
                .windows(32)
                .any(|text| text == volume.handle().as_bytes()),
        },
        Choice::Mount { pod, mode } => Asked::Mount {
            pod,
            read_only: mode == "ro",
        },
        Choice::Unmount { pod } => Asked::Unmount { pod },
        Choice::Expand { mebibytes, .. } => Asked::Expand { mebibytes },
        Choice::Delete => Asked::Delete,
        Choice::Capacity | Choice::NotOurs => {
            assert_eq!(call.outcome(), Outcome::Success, "{call}");
            return None;
        }
    })
}

/// The visible state of a volume at rest. Whether it was formatted is not visible.
fn state(node: &Node, volume: &PersistentVolume, sizes: &BTreeMap<String, u64>) -> State {
    let size = sizes.get(&volume.id());
    let mounts = below(&node.sandbox.kubelet_root());
    State {
        gone: size.is_none(),
        formatted: false,
        mebibytes: size.copied().unwrap_or_default() >> 20,
        mounts: UIDS.map(|uid| {
            let of_pod = |mount: &&flexvol_testing::Mounted| {
                let path = mount.point.to_string_lossy();
                path.contains(uid) && path.ends_with(&format!("/{}", volume.name))
            };
            mounts.iter().find(of_pod).map(|mount| mount.read_only)
        }),
    }
}

fn agrees(end: &State, is: &State) -> bool {
    end.gone == is.gone && end.mounts == is.mounts && (end.gone || end.mebibytes == is.mebibytes)
}

fn act(node: &Node, volume: &PersistentVolume, choice: &Choice) -> Call {
    let driver = &node.driver;
    let pod = |pod: usize| node.pod_of(volume, UIDS[pod]);
    match *choice {
        Choice::Provision => driver.call(&["provision", &request(&volume.name, SIZE)]),
        Choice::Mount { pod: n, mode } => driver.call(&pod(n).mount_arguments(mode)),
        Choice::Unmount { pod: n } => driver.call(&["unmount", pod(n).dir().to_str().unwrap()]),
        Choice::Expand { pod: n, mebibytes } => {
            driver.call(&pod(n).expand_arguments(mebibytes << 20, SIZE))
        }
        Choice::Delete => driver.call(&["delete", &volume.json("rw")]),
        Choice::Capacity => driver.call(&["capacity", "{}"]),
        Choice::NotOurs => driver.call(&[
            "unmount",
            node.sandbox.path("nothing-here").to_str().unwrap(),
        ]),
    }
}

/// Checks the state at rest: each directory is mounted once, and all mounts of one volume have one device.
fn legal(node: &Node, volumes: &[PersistentVolume], seed: u64) {
    let mut points = BTreeMap::new();
    let mut devices: BTreeMap<String, String> = BTreeMap::new();
    for mount in below(&node.sandbox.kubelet_root()) {
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
    node.expect_legal(devices.len(), seed);
}

/// Unmounts and deletes every remaining volume as a caller would.
fn close(node: &Node, volumes: &[PersistentVolume]) {
    for volume in volumes {
        for uid in UIDS {
            node.pod_of(volume, uid).unmount().success();
        }
        node.delete(volume).success();
    }
    if node.sizes().is_empty() {
        return;
    }
    // A storm may have deleted a volume and provisioned another one with its name.
    for volume in volumes {
        let again = request(&volume.name, SIZE);
        let again = node.driver.call(&["provision", &again]).success();
        let again = PersistentVolume::from_reply(&volume.name, filesystem(node), &again);
        node.delete(&again).success();
    }
    assert_eq!(node.sizes(), BTreeMap::new());
}
