//! The pools of one driver, and what its volumes share.

use crate::{
    any_pool::{AnyPool, KindVtable, any},
    kind::Kind,
    pool::Pool,
    settings::Settings,
};
use std::{fmt, rc::Rc};

/// A driver for volumes of this node: implements every callout crash-safely on top of a backend.
pub struct VolumeDriver {
    pub(crate) pools: Vec<AnyPool>,
    pub(crate) kind: KindVtable,
    pub(crate) settings: Settings,
    /// Drivers of other configurations, whose volumes this executable may also have mounted.
    pub(crate) others: Vec<VolumeDriver>,
}

impl fmt::Debug for VolumeDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeDriver")
            .field("pools", &self.pools)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl VolumeDriver {
    pub(crate) fn over<K: Kind>(pools: &Rc<[Pool<K::Backend>]>, settings: Settings) -> Self {
        VolumeDriver {
            pools: any::<K>(pools),
            kind: KindVtable::of::<K>(),
            settings,
            others: Vec::new(),
        }
    }

    /// Makes this driver unmount the volumes of these drivers too: a configuration may change or get lost while
    /// volumes are mounted, and pods must still terminate.
    #[must_use]
    pub fn and_unmount(mut self, others: impl IntoIterator<Item = VolumeDriver>) -> Self {
        self.others.extend(others);
        self
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }
}
