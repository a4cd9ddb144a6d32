//! What Linux does for a volume.
//!
//! This is the only crate of the workspace that contains `unsafe` and that starts programs.
#![warn(missing_docs)]

mod attribute;
pub mod clock;
mod confine;
mod deadline;
pub mod device;
pub mod exec;
mod extents;
pub mod format;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod grow;
mod guarded;
mod image;
pub mod kernel;
pub mod limit;
pub mod lock;
pub mod loop_device;
pub mod lvm;
pub mod mount;
pub mod mountinfo;
mod node;
pub mod ownership;
pub mod pool;
pub mod probe;
pub mod random;
mod run_dir;
mod subvolume;
pub mod superblock;
mod sys;
mod tree;
pub mod uuid;
mod volume_id;

pub use device::{Device, DeviceNumber};
pub use pool::{Allocation, Image, PoolId, Reserve};
pub use sys::fork::fork;
pub use uuid::Uuid;
pub use volume_id::VolumeId;
