//! The callouts of a volume's life, each with what it needs before, what it promises, and what
//! undoes it: for suites that disturb them.

pub mod block;
pub mod directory;

use crate::{sandbox, vendors};
use flexvol_testing::{
    Call, Disturbance, Disturbed, Driver, Need, PersistentVolume, Pod, Points, Sandbox,
};

pub const NEEDS: &[Need] = &[
    Need::Root,
    Need::Tool("strace", "strace"),
    Need::Tool("mkfs.xfs", "xfsprogs"),
    Need::Tool("mkfs.ext4", "e2fsprogs"),
    Need::Tool("mkfs.btrfs", "btrfs-progs"),
];

/// One node with a driver.
pub struct Place {
    pub sandbox: Sandbox,
    pub driver: Driver,
}

/// A callout in one state of a volume; see [`Disturbed`], whose words these are.
struct Callout<'a, S> {
    name: &'a str,
    prepare: &'a dyn Fn() -> S,
    arguments: &'a dyn Fn(&S) -> Vec<String>,
    formats: bool,
    check: &'a dyn Fn(&S, &Call),
    undo: &'a dyn Fn(S),
}

impl Place {
    /// With the backend `loop`.
    pub fn of_images() -> Self {
        let sandbox = sandbox();
        let driver = sandbox.install("example.com/loop", false, "");
        Place { sandbox, driver }
    }

    /// With a driver whose volumes are directories.
    pub fn of_directories() -> Self {
        let sandbox = sandbox();
        let driver = vendors::install(&sandbox, "hello-directory");
        Place { sandbox, driver }
    }

    pub fn pod<'a>(&'a self, volume: &'a PersistentVolume) -> Pod<'a> {
        Pod::new(
            &self.sandbox,
            &self.driver,
            volume,
            "0b1e55ed-0000-4000-8000-000000000001",
        )
    }

    pub fn delete(&self, volume: &PersistentVolume) -> Call {
        self.driver.call(&["delete", &volume.json("rw")]).success()
    }

    fn disturbed<S>(&self, callout: &Callout<'_, S>, disturbance: Disturbance, points: &Points) {
        let &Callout {
            name,
            prepare,
            arguments,
            formats,
            check,
            undo,
        } = callout;
        Disturbed {
            name,
            sandbox: &self.sandbox,
            driver: &self.driver,
            prepare,
            arguments,
            formats,
            check,
            undo,
        }
        .run(&[disturbance], points);
    }
}
