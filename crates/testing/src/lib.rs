//! Shared code of the tests: layers, sandboxes, calls of the driver as kubelet makes them, baselines, and the harness
//! that kills callouts and makes their system calls fail.

#![allow(clippy::print_stdout, reason = "a test runner prints its report")]

mod baseline;
mod budget;
mod disturbed;
mod driver;
mod hidden;
pub mod images;
mod isolation;
mod kernel;
mod kernel_log;
mod kubelet;
mod layer;
mod mounts;
mod need;
mod random;
mod recorded;
mod reply;
mod sandbox;
mod service_manager;
pub mod story;
mod trace;
mod write_log;

pub use baseline::Baseline;
pub use budget::{Budget, Progress, Share, budget};
pub use disturbed::{Disturbance, Disturbed};
pub use driver::{Driver, executable};
pub use hidden::Hidden;
pub use isolation::{arena, isolate, leave_mounts, older_kernel};
pub use kubelet::{PersistentVolume, Pod, json, request, volume_id};
pub use layer::{Case, Points, Test, cases, run_cases, run_layer};
pub use mounts::{Backing, Mounted, below, loops_of, mounts_in};
pub use need::{
    Need, VIRTUAL_MACHINE, disks, eventually, has_sys_resource, in_virtual_machine, patience,
};
pub use random::Random;
pub use recorded::Recorded;
pub use reply::{Call, Outcome};
pub use sandbox::{PoolFilesystem, Sandbox};
pub use service_manager::ServiceManager;
pub use write_log::{Replay, WriteLog};
