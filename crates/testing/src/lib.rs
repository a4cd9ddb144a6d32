//! What the tests share: layers, sandboxes with guards, the driver called as kubelet calls it,
//! baselines, and the harness that kills callouts.

#![allow(clippy::print_stdout, reason = "a test runner prints its report")]

mod baseline;
mod budget;
mod driver;
pub mod images;
mod isolation;
mod kernel;
mod kill;
mod kubelet;
mod layer;
mod mounts;
mod random;
mod recorded;
mod reply;
mod sandbox;

pub use baseline::Baseline;
pub use budget::{Budget, budget};
pub use driver::Driver;
pub use isolation::arena;
pub use isolation::isolate;
pub use kill::Killed;
pub use kubelet::{PersistentVolume, Pod, json, request};
pub use layer::{Need, Points, Test, run_layer};
pub use mounts::{Backing, Mounted, below, loops_of, mounts_in};
pub use random::Random;
pub use recorded::Recorded;
pub use reply::{Call, Outcome};
pub use sandbox::{PoolFilesystem, Sandbox};
