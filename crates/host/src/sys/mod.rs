//! System calls that neither std, nix nor rustix offers, each behind a safe function.

pub(crate) mod block;
pub(crate) mod btrfs;
pub(crate) mod btrfs_tree;
pub(crate) mod child;
pub(crate) mod disk_probe;
pub(crate) mod ending;
pub(crate) mod fiemap;
pub(crate) mod file_lease;
pub(crate) mod fork;
pub(crate) mod loops;
pub(crate) mod quota;
pub(crate) mod start;
mod unwinding;
