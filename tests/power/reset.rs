//! Machine resets in the middle of growing: qemu is killed, and the machine starts again on the same
//! disk.

use crate::{
    NEEDS,
    machine::{Backend, Keep},
    node::{Ground, Node, fsck},
    story::{GROWN, SIZE},
};
use flexvol_testing::{PersistentVolume, Points, Random, arena, budget, request, tests};
use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

tests! {
    "an ext4 volume survives resets of the machine while it grows", NEEDS
        => |points| resets("ext4", points);
    "an xfs volume survives resets of the machine while it grows", NEEDS
        => |points| resets("xfs", points);
}

/// Number of resets, each at another moment.
const RESETS: usize = 50;

/// Longest delay before a reset. A growth takes less in the machine.
const LONGEST: Duration = Duration::from_millis(1000);

fn resets(filesystem: &'static str, points: &Points) {
    let started = Instant::now();
    let mut moments: Vec<_> = (0..RESETS).collect();
    Random::new(budget().seed).shuffle(&mut moments);
    let (mut done, mut grown) = (0, 0);
    for moment in moments {
        if done > 0 && !budget().allows(started) {
            break;
        }
        let part = u32::try_from(moment).unwrap();
        let after = LONGEST * part / u32::try_from(RESETS).unwrap();
        grown += u64::from(reset(filesystem, after));
        done += 1;
    }
    points.report(
        &format!("resets while {filesystem} grows"),
        done,
        RESETS,
        &format!("moments, {grown} after its storage had grown"),
    );
}

/// Whether the storage had grown when the machine was reset.
fn reset(filesystem: &'static str, after: Duration) -> bool {
    let place = tempfile::tempdir_in(arena()).unwrap();
    let disk = place.path().join("disk");
    let mut node = Node::with_pool(place.path(), &Keep::Disk(&disk), Backend::Loop);
    let call = node.call(&["provision", &request("pv", SIZE)]).success();
    let volume = PersistentVolume::from_reply("pv", filesystem, &call);
    node.mount(&volume).success();
    let sums = ["a", "b", "c"].map(|name| (name.to_owned(), node.write(name, 300)));
    let sums = BTreeMap::from(sums);
    let before = node.size();
    let growth = node.expand_arguments(&volume, GROWN, SIZE);
    node.begin(&growth.each_ref().map(String::as_str));
    thread::sleep(after);
    node.cut();

    let mut node = Node::in_machine(place.path(), &Keep::Disk(&disk), Backend::Loop);
    node.ground.insert_disk().unwrap();
    let storage = node.ground.storage(&volume.id());
    let length = node.run(&format!("stat -c %s {storage}"));
    node.mount(&volume).success();
    assert!(node.size() >= before, "{after:?}: it is smaller");
    node.expand(&volume, GROWN, SIZE).success();
    assert!(node.size() > before + (GROWN - SIZE) / 2, "{after:?}");
    assert_eq!(node.sums(sums.keys()), sums, "{after:?}");
    node.unmount();
    node.run(&fsck(filesystem, &storage));
    node.ground.take_out_disk();
    length.trim() != SIZE.to_string()
}
