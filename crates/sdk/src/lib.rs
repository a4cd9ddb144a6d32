//! Write a Kubernetes FlexVolume driver: typed callouts in, one [`DriverStatus`] line out.
//!
//! Kubelet and the controller manager exec a driver once per operation ("callout"), read its standard output and
//! standard error as one buffer and expect exactly one JSON object there. This crate handles that exchange: it
//! parses the arguments in every layout that callers since Kubernetes 1.6 use, calls one method of your [`Driver`],
//! and writes the reply. You write only the storage code.
//!
//! ```no_run
//! use flexvol_sdk::{Answer, Capabilities, Driver, Error, MountRequest, run};
//! use std::{path::Path, process::ExitCode};
//!
//! #[derive(serde::Deserialize)]
//! struct Share {
//!     export: String,
//! }
//!
//! struct Shares;
//!
//! impl Driver for Shares {
//!     fn mount(&self, request: &MountRequest) -> Answer<()> {
//!         let share: Share = request.volume.options.parse()?;
//!         Ok(mount_share(&share.export, &request.dir, request.volume.read_only)?)
//!     }
//!
//!     fn unmount(&self, dir: &Path) -> Answer<()> {
//!         Ok(unmount_share(dir)?)
//!     }
//! }
//!
//! fn main() -> ExitCode {
//!     run(Capabilities::local(), &|| Ok(Box::new(Shares)))
//! }
//! # fn mount_share(_: &str, _: &Path, _: bool) -> Result<(), Error> { Ok(()) }
//! # fn unmount_share(_: &Path) -> Result<(), Error> { Ok(()) }
//! ```
//!
//! This crate has no storage code. `flexvol-storage` builds on it, for drivers whose volumes are block devices or
//! directories.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod answer;
mod argument;
mod beside;
mod bytes;
mod callout;
mod driver;
mod error;
mod handle;
pub mod leftover;
mod limits;
mod log;
pub mod memory;
mod options;
mod pod_dir;
mod quantity;
mod run;
mod scrub;
mod secret;
mod status;
pub mod stuck;
mod volume;

pub use answer::answer;
pub use beside::path_beside_executable;
pub use bytes::Bytes;
pub use callout::Callout;
pub use driver::{Answer, Capacity, Driver, Failure, Open, Provisioned, not_supported};
pub use error::{Error, ErrorClass, ErrorKind, Result};
pub use handle::Handle;
pub use limits::survive_file_size_limit;
pub use log::{Log, step};
pub use options::Options;
pub use pod_dir::{PodVolumeDir, is_pod_uid};
pub use run::{Environment, Fork, Program, run};
pub use secret::Secret;
pub use status::{Capabilities, DriverStatus, PoolSpace, Status};
pub use volume::{Filesystem, FsType, MountRequest, Pod, Resize, Volume, VolumeName};
