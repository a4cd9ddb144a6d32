//! Write a Kubernetes FlexVolume driver: typed callouts in, one [`DriverStatus`] line out.
//!
//! Kubelet and the controller manager exec a driver once per operation ("callout"), read its
//! standard output and standard error as one buffer and expect exactly one JSON object there.
//! This crate owns that exchange: it parses the arguments of every layout that a caller since
//! Kubernetes 1.6 uses, calls one method of your [`Driver`], and writes the reply. What you
//! write is storage.
//!
//! There is no storage code in here; `flexvol-storage` builds on this crate for drivers whose
//! volumes are block devices or directories.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod answer;
mod argument;
mod bytes;
mod callout;
mod driver;
mod error;
mod handle;
mod log;
mod options;
mod quantity;
mod run;
mod scrub;
mod secret;
mod status;
mod volume;

pub use answer::answer;
pub use bytes::Bytes;
pub use callout::Callout;
pub use driver::{Answer, Driver, Failure, Open, Provisioned, not_supported};
pub use error::{Error, ErrorClass, ErrorKind, Result};
pub use handle::Handle;
pub use log::{Log, step};
pub use options::Options;
pub use run::{Environment, Program, run};
pub use secret::Secret;
pub use status::{Capabilities, DriverStatus, Status};
pub use volume::{Filesystem, MountRequest, Pod, Resize, Volume, VolumeName};
