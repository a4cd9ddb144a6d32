//! The life of a volume: identify, lock, observe, decide, act, measure.
//!
//! A vendor implements a [`BlockBackend`] or a [`DirectoryBackend`] for the storage and gets every callout from
//! [`BlockDriver`] or [`DirectoryDriver`]. Repeated, reordered, interrupted or run in parallel, each callout
//! reaches the requested state or answers why not. Everything else that a driver needs is re-exported from
//! here.
//!
//! A whole driver whose volumes are image files, seen through loop devices:
//!
//! ```no_run
//! use flexvol_storage::host::{Allocation, Device, DeviceNumber, Reserve, loop_device, pool::Pool};
//! use flexvol_storage::sdk::{Bytes, Options, Result};
//! use flexvol_storage::{Asset, Backend, BlockBackend, BlockDriver, Catalog, Mark, VolumeId, run};
//! use std::{path::Path, process::ExitCode};
//!
//! struct Files(Pool);
//!
//! const RESERVE: Reserve = Reserve::Percent(15);
//!
//! impl Backend for Files {
//!     // The volumes, by id and by name. `Pool` implements this.
//!     fn catalog(&self) -> &dyn Catalog {
//!         &self.0
//!     }
//!     fn find(&self, volume: &VolumeId) -> Result<Option<Asset>> {
//!         self.0.image(volume)?.map(Asset::of_image).transpose()
//!     }
//!     // The mark is stored with the data and moves with it.
//!     fn create(&self, volume: &VolumeId, size: Bytes, mark: &Mark) -> Result<()> {
//!         self.0.create(volume, size, mark, Allocation::Full, RESERVE)
//!     }
//!     fn set_mark(&self, volume: &VolumeId, mark: &Mark) -> Result<()> {
//!         self.0.existing_image(volume)?.set_mark(mark)
//!     }
//!     fn grow(&self, volume: &VolumeId, to: Bytes) -> Result<()> {
//!         self.0.extend(volume, to, Allocation::Full, RESERVE)
//!     }
//!     fn destroy(&self, volume: &VolumeId) -> Result<()> {
//!         self.0.remove(volume)
//!     }
//!     fn capacity(&self, _: &Options) -> Result<Bytes> {
//!         self.0.available(RESERVE, Allocation::Full)
//!     }
//! }
//!
//! impl BlockBackend for Files {
//!     // Finds the volume behind a device, even while the pool is missing.
//!     fn owner(device: DeviceNumber, expected: Option<&VolumeId>) -> Result<Option<VolumeId>> {
//!         loop_device::owner(device, expected)
//!     }
//!     fn mapped(&self, volume: &VolumeId, hint: Option<u32>) -> Result<Option<Device>> {
//!         match self.0.image(volume)? {
//!             Some(image) => loop_device::find(&image, hint),
//!             None => Ok(None),
//!         }
//!     }
//!     fn map(&self, volume: &VolumeId, hint: Option<u32>) -> Result<Device> {
//!         let image = self.0.whole_image(volume, Allocation::Full, RESERVE)?;
//!         loop_device::attach(&image, volume, hint, Allocation::Full)
//!     }
//! }
//!
//! fn main() -> ExitCode {
//!     run(BlockDriver::<Files>::capabilities(false), &|| {
//!         let open = || Ok(Files(Pool::open(Path::new("/var/lib/example"))?));
//!         Ok(Box::new(BlockDriver::with_pool(open)))
//!     })
//! }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub use flexvol_host as host;
pub use flexvol_sdk as sdk;

mod any_pool;
mod backend;
mod block;
mod callouts;
pub mod decide;
mod directory;
mod forecast;
mod identify;
mod inventory;
mod kind;
mod maintenance;
pub mod mark;
mod mounts;
pub mod observed;
mod pool;
mod provision;
mod purge;
mod reconcile;
pub mod retention;
mod run;
mod settings;
mod stored;
mod volume_driver;
mod volume_report;

pub use backend::{Backend, BlockBackend, Catalog, DirectoryBackend, Space};
pub use block::{Block, BlockDriver};
pub use directory::{Directory, DirectoryDriver};
pub use flexvol_host::VolumeId;
pub use forecast::{Ending, Forecast};
pub use inventory::{Explanation, Inventory, PoolReport, Subject};
pub use kind::{CallContext, Kind};
pub use maintenance::{
    Adopted, Adoption, Leftover, Maintenance, ManagedBackend, ManagedDirectories, PoolAdmin,
};
pub use mark::Mark;
pub use observed::{Asset, Goal, Observed};
pub use pool::Pool;
pub use reconcile::{Reached, World, reconcile};
pub use run::run;
pub use settings::{Growth, Names, Namespaces, Policy, Role, Settings};
pub use volume_driver::VolumeDriver;
pub use volume_report::{DeviceReport, VolumeReport};
