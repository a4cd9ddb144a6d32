//! Drivers as Kubernetes finds them: a directory of directories `vendor~driver`, each with an
//! executable (`pkg/volume/flexvolume/probe.go`).

mod deployment;
mod directory;
mod name;
mod users;
mod watch;

pub use deployment::{Deployment, Removed, init_of, remove};
pub use directory::{Component, PluginDir, Process, processes};
pub use name::DriverName;
pub use users::mounted;
pub use watch::every;
