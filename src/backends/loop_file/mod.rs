//! The backend `loop`: a volume is a file in a directory of the node, seen through a loop device.

mod doctor;
mod keys;

use super::{
    DEFAULT_DIRECTORY, Pools,
    keys::{of, read},
};
use flexvol_storage::{
    Asset, Backend, Block, BlockBackend, BlockDriver, Catalog, ManagedBackend, Mark, Pool,
    PoolAdmin, Space, VolumeId,
    host::{Allocation, Device, DeviceNumber, Image, loop_device, pool},
    mark::State,
    sdk::{Bytes, Error, ErrorKind, Options, Result, VolumeName},
};
use keys::LoopKeys;
use std::{cell::RefCell, fs::File, path::Path, rc::Rc, sync::Arc, time::Duration};

/// A pool of image files.
struct Images {
    pool: pool::Pool,
    allocation: Allocation,
    reserve: pool::Reserve,
    open: RefCell<Option<(VolumeId, Rc<Image>)>>,
}

pub const BACKEND: super::Backend = super::Backend {
    name: "loop",
    keys: read::<LoopKeys>,
    formats: true,
    default_pools: Some(DEFAULT_DIRECTORY),
    capabilities: BlockDriver::<Images>::capabilities,
    open: |pools, settings| BlockDriver::over(pools_of(pools), settings),
    maintenance: |pools, settings| {
        Box::new(PoolAdmin::<Block<Images>>::new(pools_of(pools), settings))
    },
    node_checks: |_| Vec::new(),
    pool_checks: doctor::of_pools,
};

/// Returns the configured pools. Each is opened when a callout needs it.
fn pools_of(pools: &Pools) -> Vec<Pool<Images>> {
    // Skipped for one pool, the usual case, because every callout runs this.
    let places = (pools.len() > 1).then(|| places(pools));
    let pools = of::<LoopKeys>(pools).map(|(name, policy, keys)| {
        let (keys, places, path) = (keys.clone(), places.clone(), keys.path.clone());
        let open = move || Images::open(&keys, places.clone());
        Pool::new(name, policy.clone(), open).at(path)
    });
    pools.collect()
}

/// Returns the places of all pools, so that pools on one file system do not promise the same space twice.
fn places(pools: &Pools) -> Arc<[pool::Place]> {
    let places = of::<LoopKeys>(pools).map(|(name, _, keys)| pool::Place {
        name: name.to_owned(),
        path: keys.path.clone(),
        allocation: keys.allocation(),
    });
    places.collect()
}

impl Images {
    fn open(keys: &LoopKeys, places: Option<Arc<[pool::Place]>>) -> Result<Images> {
        let pool = pool::Pool::open(&keys.path)?;
        Ok(Images {
            pool: match places {
                Some(places) => pool.among(places),
                None => pool,
            },
            allocation: keys.allocation(),
            reserve: keys.reserve,
            open: RefCell::default(),
        })
    }

    /// Returns the volume's image. It stays open, because a callout looks at it some twenty times.
    fn image(&self, volume: &VolumeId) -> Result<Option<Rc<Image>>> {
        let open = self.open.take().filter(|(id, _)| id == volume);
        let image = match open {
            Some((_, image)) if image.is_there()? => Some(image),
            _ => self.pool.image(volume)?.map(Rc::new),
        };
        *self.open.borrow_mut() = image.clone().map(|image| (*volume, image));
        Ok(image)
    }

    fn existing_image(&self, volume: &VolumeId) -> Result<Rc<Image>> {
        self.image(volume)?
            .ok_or_else(|| Error::new(ErrorKind::NotFound, "the volume's image is gone"))
    }
}

impl Backend for Images {
    fn invalidate_cache(&self) {
        self.open.take();
    }

    fn catalog(&self) -> &dyn Catalog {
        &self.pool
    }

    fn find(&self, volume: &VolumeId) -> Result<Option<Asset>> {
        let Some(image) = self.image(volume)? else {
            return Ok(None);
        };
        let thin = self.allocation == Allocation::Thin;
        Ok(Some(Asset::of_image(image)?.with_thin(thin, thin)))
    }

    fn create(&self, volume: &VolumeId, size: Bytes, mark: &Mark) -> Result<()> {
        self.pool
            .create(volume, size, mark, self.allocation, self.reserve)
    }

    fn set_mark(&self, volume: &VolumeId, mark: &Mark) -> Result<()> {
        match self.existing_image(volume)?.set_mark(mark) {
            // Without space for the mark, the volume is removed at once: removing an image is atomic and frees
            // space.
            Err(full) if full.kind() == ErrorKind::Exhausted && mark.state == State::Deleting => {
                log::warn!("removing the volume unmarked: {}", full.report());
                self.destroy(volume)
            }
            marked => marked,
        }
    }

    fn grow(&self, volume: &VolumeId, to: Bytes) -> Result<()> {
        let image = self.existing_image(volume)?;
        image.extend(to, self.allocation, self.reserve, &self.pool)
    }

    fn destroy(&self, volume: &VolumeId) -> Result<()> {
        // The blocks are freed only when the last descriptor is closed.
        self.open.take();
        self.pool.remove(volume)
    }

    fn size(&self) -> Result<Option<Bytes>> {
        Ok(Some(self.pool.space()?.size))
    }

    fn capacity(&self, _: &Options) -> Result<Bytes> {
        self.pool.available(self.reserve, self.allocation)
    }

    fn space(&self, _: &Options) -> Result<Space> {
        let found = self.pool.promises(self.reserve, self.allocation)?;
        let shortfall = found.shortfall.and_then(|shortfall| {
            if shortfall.unknown > Bytes(0) {
                log::warn!(
                    "volumes in very many pieces: {}; it is not known whether they lack up to {} of their storage",
                    shortfall.unknown_volumes,
                    shortfall.unknown
                );
            }
            // Report zero only if every volume was measured.
            let known = shortfall.bytes > Bytes(0) || shortfall.unknown == Bytes(0);
            known.then_some(shortfall.bytes)
        });
        Ok(Space {
            largest: found.available,
            size: self.size()?,
            free: Some(found.available),
            promised: found.promised,
            shortfall,
        })
    }
}

impl BlockBackend for Images {
    fn owner(device: DeviceNumber, expected: Option<&VolumeId>) -> Result<Option<VolumeId>> {
        loop_device::owner(device, expected)
    }

    fn mapped(&self, volume: &VolumeId, hint: Option<u32>) -> Result<Option<Device>> {
        match self.image(volume)? {
            Some(image) => loop_device::find(&image, hint),
            None => Ok(None),
        }
    }

    fn image(&self, volume: &VolumeId) -> Result<Option<File>> {
        self.image(volume)?
            .map(|image| image.file().try_clone())
            .transpose()
            .map_err(|error| Error::system("open the volume's image", error))
    }

    fn map(&self, volume: &VolumeId, hint: Option<u32>) -> Result<Device> {
        let image = self.existing_image(volume)?;
        self.pool
            .make_whole(&image, volume, self.allocation, self.reserve)?;
        loop_device::attach(&image, volume, hint, self.allocation)
    }

    fn map_again(&self, volume: &VolumeId, held: Device, hint: Option<u32>) -> Result<Device> {
        let image = self.existing_image(volume)?;
        self.pool
            .make_whole(&image, volume, self.allocation, self.reserve)?;
        loop_device::attach_again(held, &image, volume, hint, self.allocation)
    }

    fn unmap(&self, device: Device) -> Result<()> {
        loop_device::release(device)
    }
}

impl ManagedBackend for Images {
    type Unmanaged = pool::AdoptionCandidate;

    fn open_unmanaged(&self, path: &Path) -> Result<Option<pool::AdoptionCandidate>> {
        self.pool.adoption_candidate(path, |volume| {
            let mark = self.find(volume)?.and_then(|asset| asset.mark);
            // Nobody may have a candidate open.
            self.invalidate_cache();
            Ok(mark.is_some_and(|mark| mark.is_of(volume, self.pool.id())))
        })
    }

    fn device_of(&self, image: &pool::AdoptionCandidate, volume: &VolumeId) -> Result<Device> {
        loop_device::attach(image.image(), volume, None, self.allocation)
    }

    fn adopt(&self, image: pool::AdoptionCandidate, volume: &VolumeId, mark: &Mark) -> Result<()> {
        self.pool.adopt(
            image,
            volume,
            &mark.to_string(),
            self.allocation,
            self.reserve,
        )
    }

    fn complete(&self, volume: &VolumeId) -> Result<()> {
        self.pool.complete(volume, self.allocation, self.reserve)
    }

    fn excess(&self, volume: &VolumeId) -> Result<Bytes> {
        self.existing_image(volume)?.excess()
    }

    fn drop_excess(&self, volume: &VolumeId) -> Result<()> {
        self.existing_image(volume)?.drop_excess()
    }

    fn dangling_names(&self, age: Duration) -> Result<Vec<(VolumeName, VolumeId)>> {
        self.pool.dangling_names(age)
    }

    fn is_leftover(&self, device: &Device) -> Result<bool> {
        loop_device::is_half_attached(device)
    }
}
