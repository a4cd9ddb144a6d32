//! The callouts of a volume's life, each with what it needs before, what it promises, and what
//! undoes it: for suites that disturb them.

pub mod block;
pub mod directory;

use crate::node::Node;
use flexvol_testing::{Call, Disturbance, Disturbed, Need, Points};

pub const NEEDS: &[Need] = &[
    Need::Root,
    Need::Tool("strace", "strace"),
    Need::Tool("mkfs.xfs", "xfsprogs"),
    Need::Tool("mkfs.ext4", "e2fsprogs"),
    Need::Tool("mkfs.btrfs", "btrfs-progs"),
];

/// A callout in one state of a volume; see [`Disturbed`], whose words these are.
pub struct Callout<'a, S> {
    pub name: &'a str,
    pub prepare: &'a dyn Fn() -> S,
    pub arguments: &'a dyn Fn(&S) -> Vec<String>,
    pub formats: bool,
    pub check: &'a dyn Fn(&S, &Call),
    pub undo: &'a dyn Fn(S),
}

impl Node {
    pub fn disturbed<S>(
        &self,
        callout: &Callout<'_, S>,
        disturbance: Disturbance,
        points: &Points,
    ) {
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
