//! Drivers as Kubernetes finds them: directories `vendor~driver` in a plugin directory, each with an executable
//! (`pkg/volume/flexvolume/probe.go`).

mod deployment;
mod directory;
mod files;
mod name;
mod owned;
mod periodic;
mod removal;
mod users;

pub use deployment::{Deployment, init_of};
pub use directory::{PluginDir, drivers};
pub use name::DriverName;
pub use owned::expect_owned;
pub use periodic::every;
pub use removal::{Removed, remove};
