//! The life of a volume: identify, lock, observe, decide, act, measure.
//!
//! A vendor of block storage writes a [`BlockBackend`] and gets every callout from
//! [`BlockDriver`]; everything else a driver needs is re-exported from here.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub use flexvol_host as host;
pub use flexvol_sdk as sdk;

mod backend;
mod block;
mod block_world;
mod converge;
pub mod decide;
mod directory;
mod directory_world;
mod driver;
mod forecast;
mod identify;
mod inventory;
mod kind;
pub mod mark;
pub mod observed;
mod pool;
mod settings;
mod stored;
mod upkeep;

pub use backend::{Backend, BlockBackend, Catalog, DirectoryBackend};
pub use block::{Block, BlockDriver};
pub use converge::{Reached, World, converge};
pub use directory::{Directory, DirectoryDriver};
pub use driver::VolumeDriver;
pub use forecast::{Ending, Forecast};
pub use inventory::{DeviceReport, Explanation, Inventory, PoolReport, Subject, VolumeReport};
pub use kind::{Details, Kind};
pub use mark::Mark;
pub use observed::{Asset, Goal, Observed};
pub use pool::Pool;
pub use settings::{Growth, Names, Namespaces, Policy, Role, Settings};
pub use upkeep::{Adopted, Adoption, Leftover, ManagedBackend, Upkeep};
