//! What people ask about a driver's pools and volumes; no callout needs it.

use crate::{Asset, BlockBackend, BlockDriver, Mark};
use flexvol_host::mountinfo;
use flexvol_sdk::{Bytes, Error, Handle, Result, VolumeName};
use std::path::PathBuf;

/// One pool, as it is now.
#[derive(Debug)]
pub struct PoolReport {
    /// Its name in the configuration.
    pub name: String,
    /// What can still be provisioned, or why the pool cannot be used.
    pub available: Result<Bytes>,
}

/// One volume, as it is now.
#[derive(Debug)]
pub struct VolumeReport {
    /// Its identity.
    pub handle: Handle,
    /// The pool it is in.
    pub pool: String,
    /// Size of its storage, and its mark.
    pub asset: Asset,
    /// Size of its block device; `None` while there is none.
    pub device: Option<Bytes>,
    /// Where it is mounted in this mount namespace.
    pub mounts: Vec<PathBuf>,
}

impl VolumeReport {
    /// The persistent volume it was made for.
    #[must_use]
    pub fn name(&self) -> Option<&VolumeName> {
        self.mark()?.name.as_ref()
    }

    /// Its mark, if it has one.
    #[must_use]
    pub fn mark(&self) -> Option<&Mark> {
        self.asset.mark.as_ref()
    }
}

/// What can be asked about a driver, whatever its backend.
pub trait Inventory {
    /// Every pool of the configuration, also those that cannot be used now.
    fn pools(&self) -> Vec<PoolReport>;

    /// Every volume of one pool; one that cannot be read is an error beside the others.
    ///
    /// # Errors
    /// When the pool cannot be used.
    fn volumes(&self, pool: &str) -> Result<Vec<Result<VolumeReport, (Handle, Error)>>>;
}

impl<B: BlockBackend> Inventory for BlockDriver<B> {
    fn pools(&self) -> Vec<PoolReport> {
        let report = |pool: &crate::Pool<B>| PoolReport {
            name: pool.name().to_owned(),
            available: pool
                .open()
                .and_then(|backend| backend.capacity(&Default::default())),
        };
        self.all_pools().iter().map(report).collect()
    }

    fn volumes(&self, pool: &str) -> Result<Vec<Result<VolumeReport, (Handle, Error)>>> {
        let pool = self.pool(Some(pool))?;
        let backend = pool.open()?;
        let report = |handle: &Handle| -> Result<Option<VolumeReport>> {
            let Some(asset) = backend.find(handle)? else {
                return Ok(None);
            };
            let device = backend.mapped(handle, None)?;
            Ok(Some(VolumeReport {
                handle: *handle,
                pool: pool.name().to_owned(),
                asset,
                device: device
                    .as_ref()
                    .map(flexvol_host::Device::size)
                    .transpose()?,
                mounts: match &device {
                    Some(device) => mountinfo::mounts_of(device.number())?
                        .into_iter()
                        .map(|mount| mount.mount_point)
                        .collect(),
                    None => Vec::new(),
                },
            }))
        };
        let handles = backend.catalog().handles()?;
        let reports = handles
            .iter()
            .filter_map(|handle| report(handle).map_err(|error| (*handle, error)).transpose());
        Ok(reports.collect())
    }
}
