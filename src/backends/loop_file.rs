//! The backend `loop`: a volume is a file in a directory of the node, seen through a loop device.

use crate::config::{self, Config, Storage};
use flexvol_storage::{
    Asset, Backend, Block, BlockBackend, BlockDriver, Catalog, Keeper, ManagedBackend, Mark, Pool,
    Upkeep, VolumeDriver, VolumeId,
    host::{Allocation, Device, DeviceNumber, loop_device, pool},
    sdk::{Bytes, Capabilities, Error, Options, Result, VolumeName},
};
use std::{fs::File, path::Path, time::Duration};

/// A pool of image files.
struct Images {
    pool: pool::Pool,
    allocation: Allocation,
    reserve: pool::Reserve,
}

/// What a driver on this backend can do.
pub fn capabilities(attach: bool) -> Capabilities {
    BlockDriver::<Images>::capabilities(attach)
}

/// Opens the driver.
pub fn open(config: &Config) -> VolumeDriver {
    BlockDriver::over(pools(config), config.settings())
}

/// The same driver as people see it.
pub fn upkeep(config: &Config) -> Result<Box<dyn Upkeep>> {
    Ok(Box::new(Keeper::<Block<Images>>::new(
        pools(config),
        config.settings(),
    )))
}

/// Each pool is opened when a volume of it is asked for.
fn pools(config: &Config) -> Vec<Pool<Images>> {
    let pools = config.pools.iter().filter_map(|(name, pool)| {
        let Storage::Loop(images) = pool.storage.clone() else {
            return None;
        };
        Some(Pool::new(name, pool.policy(), move || {
            Images::open(&images)
        }))
    });
    pools.collect()
}

impl Images {
    fn open(config: &config::Images) -> Result<Images> {
        Ok(Images {
            pool: pool::Pool::open(&config.path)?,
            allocation: config.allocation(),
            reserve: config.reserve,
        })
    }
}

impl Backend for Images {
    fn catalog(&self) -> &dyn Catalog {
        &self.pool
    }

    fn find(&self, volume: &VolumeId) -> Result<Option<Asset>> {
        let Some(image) = self.pool.image(volume)? else {
            return Ok(None);
        };
        Ok(Some(Asset {
            thin: self.allocation == Allocation::Thin,
            promised: self.allocation == Allocation::Thin,
            ..Asset::of_image(image)?
        }))
    }

    fn create(&self, volume: &VolumeId, size: Bytes, mark: &Mark) -> Result<()> {
        self.pool
            .create(volume, size, mark, self.allocation, self.reserve)
    }

    fn set_mark(&self, volume: &VolumeId, mark: &Mark) -> Result<()> {
        self.pool.existing_image(volume)?.set_mark(mark)
    }

    fn grow(&self, volume: &VolumeId, to: Bytes) -> Result<()> {
        self.pool.extend(volume, to, self.allocation, self.reserve)
    }

    fn destroy(&self, volume: &VolumeId) -> Result<()> {
        self.pool.remove(volume)
    }

    fn capacity(&self, _: &Options) -> Result<Bytes> {
        self.pool.available(self.reserve, self.allocation)
    }

    fn missing(&self) -> Result<Option<Bytes>> {
        match self.allocation {
            Allocation::Full => Ok(Some(self.pool.missing()?.bytes)),
            Allocation::Thin => Ok(None),
        }
    }
}

impl BlockBackend for Images {
    fn owner(device: DeviceNumber) -> Result<Option<VolumeId>> {
        loop_device::owner(device)
    }

    fn mapped(&self, volume: &VolumeId, hint: Option<u32>) -> Result<Option<Device>> {
        match self.pool.image(volume)? {
            Some(image) => loop_device::find(&image, hint),
            None => Ok(None),
        }
    }

    fn image(&self, volume: &VolumeId) -> Result<Option<File>> {
        self.pool
            .image(volume)?
            .map(|image| image.file().try_clone())
            .transpose()
            .map_err(|error| Error::system("open the volume's image", error))
    }

    fn map(&self, volume: &VolumeId, hint: Option<u32>) -> Result<Device> {
        let image = self
            .pool
            .whole_image(volume, self.allocation, self.reserve)?;
        loop_device::attach(&image, volume, hint, self.allocation)
    }

    fn unmap(&self, device: Device) -> Result<()> {
        loop_device::release(device)
    }
}

impl ManagedBackend for Images {
    type Stray = pool::Stray;

    fn stray(&self, path: &Path) -> Result<Option<pool::Stray>> {
        self.pool.stray(path)
    }

    fn look(&self, stray: &pool::Stray, volume: &VolumeId) -> Result<Device> {
        loop_device::attach(stray.image(), volume, None, self.allocation)
    }

    fn take(&self, stray: pool::Stray, volume: &VolumeId, mark: &Mark) -> Result<()> {
        self.pool.take(
            stray,
            volume,
            &mark.to_string(),
            self.allocation,
            self.reserve,
        )
    }

    fn dangling_names(&self, age: Duration) -> Result<Vec<(VolumeName, VolumeId)>> {
        self.pool.dangling_names(age)
    }

    fn stays(&self, device: &Device) -> Result<bool> {
        loop_device::stays(device)
    }
}
