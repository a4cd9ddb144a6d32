//! A whole FlexVolume driver: a volume is a file in a directory, seen through a loop device.
//!
//! `.pool` beside this executable leads to the directory, which was made with `flexvol pool init`.
#![forbid(unsafe_code)]

use flexvol_storage::host::{Allocation, Device, DeviceNumber, Reserve, loop_device, pool::Pool};
use flexvol_storage::sdk::{Bytes, Options, Result, path_beside_executable};
use flexvol_storage::{Asset, Backend, BlockBackend, BlockDriver, Catalog, Mark, VolumeId, run};
use std::process::ExitCode;

struct Files(Pool);

const RESERVE: Reserve = Reserve::Percent(15);

impl Backend for Files {
    fn catalog(&self) -> &dyn Catalog {
        &self.0
    }
    fn find(&self, volume: &VolumeId) -> Result<Option<Asset>> {
        self.0.image(volume)?.map(Asset::of_image).transpose()
    }
    fn create(&self, volume: &VolumeId, size: Bytes, mark: &Mark) -> Result<()> {
        self.0.create(volume, size, mark, Allocation::Full, RESERVE)
    }
    fn set_mark(&self, volume: &VolumeId, mark: &Mark) -> Result<()> {
        self.0.existing_image(volume)?.set_mark(mark)
    }
    fn grow(&self, volume: &VolumeId, to: Bytes) -> Result<()> {
        self.0.extend(volume, to, Allocation::Full, RESERVE)
    }
    fn destroy(&self, volume: &VolumeId) -> Result<()> {
        self.0.remove(volume)
    }
    fn capacity(&self, _: &Options) -> Result<Bytes> {
        self.0.available(RESERVE, Allocation::Full)
    }
}

impl BlockBackend for Files {
    fn owner(device: DeviceNumber, expected: Option<&VolumeId>) -> Result<Option<VolumeId>> {
        loop_device::owner(device, expected)
    }
    fn mapped(&self, volume: &VolumeId, hint: Option<u32>) -> Result<Option<Device>> {
        match self.0.image(volume)? {
            Some(image) => loop_device::find(&image, hint),
            None => Ok(None),
        }
    }
    fn map(&self, volume: &VolumeId, hint: Option<u32>) -> Result<Device> {
        let image = self.0.whole_image(volume, Allocation::Full, RESERVE)?;
        loop_device::attach(&image, volume, hint, Allocation::Full)
    }
}

fn main() -> ExitCode {
    run(BlockDriver::<Files>::capabilities(false), &|| {
        let open = || Ok(Files(Pool::open(&path_beside_executable(".pool")?)?));
        Ok(Box::new(BlockDriver::with_pool(open)))
    })
}
