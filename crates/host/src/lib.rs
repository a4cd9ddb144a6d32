//! Linux mechanisms that volumes are made of: block devices, file systems, mounts, locks, LVM and pools.
//!
//! This is the only crate of the workspace that contains `unsafe` and that starts programs.
#![warn(missing_docs)]

pub mod block;
pub mod clock;
mod deadline;
pub mod exec;
pub mod fs;
#[cfg(fuzzing)]
pub mod fuzzing;
pub(crate) mod image;
pub mod kernel;
pub mod lock;
pub mod loop_device;
pub mod lvm;
pub mod mount;
pub mod mountinfo;
pub mod pool;
mod random;
mod remembered;
pub mod responsive;
mod run_dir;
pub mod superblock;
mod sys;
pub mod uuid;
mod volume_id;
pub mod worker;

pub use block::{device::Device, number::DeviceNumber};
pub use pool::{Allocation, Image, PoolId, Reserve};
pub use sys::{fork::fork, start::start};
pub use uuid::Uuid;
pub use volume_id::{VolumeId, half_digest};
