//! Type erasure for pools, so that the code that pools share is compiled once and not once for each backend.

use crate::{
    backend::Backend,
    kind::{CallContext, Kind},
    mounts::Mounts,
    pool::Pool,
    reconcile::World,
    volume_report::VolumeReport,
};
use flexvol_host::{
    VolumeId,
    lock::Guard,
    mount::{Mounted, Target},
};
use flexvol_sdk::{Bytes, Filesystem, Result};
use std::rc::Rc;

/// An opened pool of any kind.
pub(crate) trait Opened {
    fn backend(&self) -> &dyn Backend;
    fn world<'a>(
        &'a self,
        volume: VolumeId,
        lock: &'a Guard,
        context: CallContext,
    ) -> Box<dyn World + 'a>;
    fn complete_report(&self, mounts: &Mounts, report: &mut VolumeReport) -> Result<()>;
    fn unmounted(&self, volume: &VolumeId, lock: &Guard);
}

struct Of<K: Kind>(K::Backend);

impl<K: Kind> Opened for Of<K> {
    fn backend(&self) -> &dyn Backend {
        &self.0
    }

    fn world<'a>(
        &'a self,
        volume: VolumeId,
        lock: &'a Guard,
        context: CallContext,
    ) -> Box<dyn World + 'a> {
        K::world(Some(&self.0), volume, lock, context)
    }

    fn complete_report(&self, mounts: &Mounts, report: &mut VolumeReport) -> Result<()> {
        K::complete_report(&self.0, mounts, report)
    }

    fn unmounted(&self, volume: &VolumeId, lock: &Guard) {
        K::unmounted(&self.0, volume, lock);
    }
}

/// A pool whose kind shows only when it is opened.
pub(crate) type AnyPool = Pool<Box<dyn Opened>>;

/// Erases the type of the pools; they keep their names and policies.
pub(crate) fn any<K: Kind>(pools: &Rc<[Pool<K::Backend>]>) -> Vec<AnyPool> {
    let any = |(at, pool): (usize, &Pool<K::Backend>)| {
        let pools = pools.clone();
        let place = pool.place().map(ToOwned::to_owned);
        let open = move || Ok(Box::new(Of::<K>(pools[at].open()?)) as Box<dyn Opened>);
        Pool::new(pool.name(), pool.policy().clone(), open).maybe_at(place)
    };
    pools.iter().enumerate().map(any).collect()
}

/// The properties and functions of a kind of volume that need no pool.
#[derive(Clone, Copy)]
pub(crate) struct KindVtable {
    pub(crate) has_filesystem: bool,
    pub(crate) wants_unmounted: bool,
    pub(crate) owner: fn(&Target) -> Result<Option<VolumeId>>,
    pub(crate) is_in_use: fn(&VolumeId) -> Result<bool>,
    /// Makes the world of a volume whose pool is missing.
    pub(crate) world: for<'a> fn(VolumeId, &'a Guard, CallContext) -> Box<dyn World + 'a>,
    pub(crate) is_responsive: fn(&Target) -> Result<bool>,
    pub(crate) shows: fn(&Target, &Mounted, &VolumeReport) -> Result<bool>,
    pub(crate) smallest: fn(Filesystem) -> Bytes,
}

impl KindVtable {
    pub(crate) fn of<K: Kind>() -> KindVtable {
        KindVtable {
            has_filesystem: K::HAS_FILESYSTEM,
            wants_unmounted: K::WANTS_UNMOUNTED,
            owner: K::owner,
            is_in_use: K::is_in_use,
            world: |volume, lock, context| K::world(None, volume, lock, context),
            is_responsive: K::is_responsive,
            shows: K::shows,
            smallest: K::smallest,
        }
    }
}
