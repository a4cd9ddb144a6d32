//! Callouts on directory volumes, killed at each of their system calls or refused it.

use super::{GROWN, Place, SIZE, damage::recorded, on_each, total};
use crate::by_hand::{said, said_json};
use flexvol_testing::{
    Call,
    Disturbance::{self, Errors, Kill},
    Disturbed, PersistentVolume, Points, Test, request, tests,
};
use std::fs;

pub const TESTS: &[Test] = on_each![
    "every callout, killed anywhere, is finished by its repetition" => killed,
];

// XFS is asked in the same way as ext4.
tests! {
    ERRORS:
    "dir on ext4: every callout, refused by the kernel anywhere, says so and is finished by its repetition", super::EXT4
        => |points| refused(&Place::new("ext4"), points);
    "dir on btrfs: every callout, refused by the kernel anywhere, says so and is finished by its repetition", super::BTRFS
        => |points| refused(&Place::new("btrfs"), points);
}

fn killed(place: &Place, points: &Points) {
    all(place, Kill, points);
}

fn refused(place: &Place, points: &Points) {
    all(place, Errors, points);
}

/// One after the other, because a virtual machine of its own for each takes longer than that.
fn all(place: &Place, disturbance: Disturbance, points: &Points) {
    for check in [provision, expandfs, delete, mount] {
        check(place, disturbance, points);
    }
}

/// Makes the state before a callout, and its arguments in that state.
type Called<'a, S> = (&'a dyn Fn() -> S, &'a dyn Fn(&S) -> Vec<String>);

impl Place {
    /// Whether the kernel holds the volume to that size, by the driver's word and by `statfs`.
    #[track_caller]
    pub(super) fn expect_limit(&self, volume: &PersistentVolume, size: u64) {
        let shown = said_json(&self.driver, &["show", volume.handle(), "-o", "json"]);
        assert_eq!(shown["storage"], size, "{shown}");
        if self.has_projects() {
            assert_eq!(total(&self.directory(volume)), size);
        }
    }

    fn disturbed<S>(
        &self,
        callout: &str,
        (prepare, arguments): Called<'_, S>,
        check: &dyn Fn(&S, &Call),
        undo: &dyn Fn(S),
        (disturbance, points): (Disturbance, &Points),
    ) {
        Disturbed {
            name: &format!("{callout} of a directory on {}", self.kind),
            sandbox: &self.sandbox,
            driver: &self.driver,
            prepare,
            arguments,
            formats: false,
            check,
            undo,
        }
        .run(&[disturbance], points);
    }
}

fn provision(place: &Place, disturbance: Disturbance, points: &Points) {
    let arguments = vec!["provision".to_owned(), request("pv", SIZE)];
    place.disturbed(
        "provision",
        (&|| (), &|()| arguments.clone()),
        &|(), call| place.expect_limit(&PersistentVolume::from_reply("pv", "", call), SIZE),
        &|()| {
            place.delete(&place.volume("pv")).success();
            // Where undoing was refused too, something stays under a name that nobody looks for.
            said(&place.driver, &["gc"]);
            assert_eq!(fs::read_dir(place.volumes()).unwrap().count(), 0);
        },
        (disturbance, points),
    );
}

fn expandfs(place: &Place, disturbance: Disturbance, points: &Points) {
    let prepare = || {
        let volume = place.volume("pv");
        place.pod(&volume, "one").mount("rw").success();
        volume
    };
    place.disturbed(
        "expandfs",
        (&prepare, &|volume| {
            place.pod(volume, "one").expand_arguments(GROWN, SIZE)
        }),
        &|volume, _| {
            place.expect_limit(volume, GROWN);
            // Quotas that were off meanwhile come back with what the record says.
            assert_eq!(recorded(&place.around(volume)), GROWN);
        },
        &|volume| {
            place.pod(&volume, "one").unmount().success();
            place.delete(&volume).success();
        },
        (disturbance, points),
    );
}

fn delete(place: &Place, disturbance: Disturbance, points: &Points) {
    let prepare = || {
        let volume = place.volume("pv");
        let root = place.directory(&volume);
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/file"), "gone").unwrap();
        volume
    };
    place.disturbed(
        "delete",
        (&prepare, &|volume| {
            vec!["delete".to_owned(), volume.json("rw")]
        }),
        &|volume, _| assert!(!place.around(volume).exists()),
        &|_| {},
        (disturbance, points),
    );
}

fn mount(place: &Place, disturbance: Disturbance, points: &Points) {
    let volume = place.volume("pv");
    let pod = place.pod(&volume, "one");
    // Out of its project, so that this is put right too.
    let prepare = || {
        if place.has_projects() {
            super::run("chattr", &["-p", "0", "-P"], &place.directory(&volume));
        }
    };
    place.disturbed(
        "mount",
        (&prepare, &|()| pod.mount_arguments("rw")),
        &|(), _| place.expect_limit(&volume, SIZE),
        &|()| drop(pod.unmount().success()),
        (disturbance, points),
    );
}
