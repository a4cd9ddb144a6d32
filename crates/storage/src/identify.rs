//! Identifies the volume that a callout is about.
//!
//! A handle in the options identifies it. Otherwise a name does, where that is allowed, or else the directory:
//! after a restart of kubelet there are no options.

use crate::{
    any_pool::{AnyPool, Opened},
    backend::Backend,
    decide::LOST,
    kind::{CallContext, LOCK_DEADLINE},
    mark::Format,
    observed::Goal,
    pool::Pool,
    reconcile::{Reached, reconcile},
    settings::{Names, Policy},
    volume_driver::VolumeDriver,
};
use flexvol_host::{
    Uuid, VolumeId,
    lock::{self, Guard},
    mount::Target,
    worker::{self, Access},
};
use flexvol_sdk::{Error, ErrorKind, Filesystem, Handle, Result, Volume, VolumeName};
use serde::Deserialize;
use std::{
    iter,
    path::{Path, PathBuf},
};

/// Directory of the paths that stand for device nodes in attach mode. Device numbers are reused, and kubelet
/// opens a recorded path later; such a path names one volume for ever.
const IDENTITY_DIR: &str = "/run/flexvol/volumes";

/// How many times a mount is looked at before it is treated as foreign: another call may be mounting.
const LOOKS: usize = 3;

/// What is mounted on a directory.
pub(crate) enum MountedThing {
    Nothing,
    Volume(VolumeId),
    /// A btrfs of a volume, on other devices than the volume's.
    Moved(VolumeId, Uuid),
    SomethingElse,
}

/// The options that a persistent volume of this driver carries.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct VolumeOptions {
    pub(crate) handle: Option<String>,
    pub(crate) pool: Option<String>,
}

impl VolumeOptions {
    /// Returns the id of the volume whose handle is in the options. Later code uses only the id.
    pub(crate) fn volume(&self) -> Result<Option<VolumeId>> {
        let handle = self.handle.as_deref().map(Handle::parse).transpose()?;
        Ok(handle.as_ref().map(VolumeId::of))
    }
}

/// An identified volume, and its pool.
pub(crate) struct Found {
    pub(crate) id: VolumeId,
    pub(crate) opened: Box<dyn Opened>,
    pub(crate) policy: Policy,
    pub(crate) pool: String,
    place: Option<PathBuf>,
}

impl Found {
    pub(crate) fn backend(&self) -> &dyn Backend {
        self.opened.backend()
    }

    /// Says that the volume is about to be changed. Other pools may have been searched since its pool was opened.
    pub(crate) fn begin_change(&self) -> Result<()> {
        worker::at(&self.pool, self.place.as_deref(), Access::Write)
    }

    pub(crate) fn lock(&self) -> Result<Guard> {
        self.begin_change()?;
        let lock = lock::volume(&self.id, LOCK_DEADLINE)?;
        self.backend().invalidate_cache();
        self.backend().make_durable(&self.id)?;
        Ok(lock)
    }

    /// Brings the volume to `goal`. The caller holds its lock.
    pub(crate) fn reach(&self, lock: &Guard, context: CallContext, goal: &Goal) -> Result<Reached> {
        self.begin_change()?;
        let mut world = self.opened.world(self.id, lock, context);
        reconcile(world.as_mut(), goal)
    }
}

impl VolumeDriver {
    pub(crate) fn pool(&self, name: Option<&str>) -> Result<&AnyPool> {
        named(&self.pools, name)
    }

    pub(crate) fn open(&self, pool: &AnyPool, id: VolumeId) -> Result<Found> {
        Ok(self.at(pool, pool.open()?, id))
    }

    pub(crate) fn at(&self, pool: &AnyPool, opened: Box<dyn Opened>, id: VolumeId) -> Found {
        Found {
            id,
            opened,
            policy: pool.policy().clone(),
            pool: pool.name().to_owned(),
            place: pool.place().map(Path::to_owned),
        }
    }

    /// Finds the pool of a volume of which only the id is known, as after a restart of kubelet. Other pools may
    /// hold a copy, whose mark names the pool it came from, or something that is no volume.
    pub(crate) fn search(&self, id: VolumeId) -> Result<Option<Found>> {
        let (mut copy, mut unavailable) = (None, None);
        for pool in &self.pools {
            let found = self.open(pool, id).and_then(|found| {
                let asset = found.backend().find(&id)?;
                Ok((asset, found.backend().catalog().id()?, found))
            });
            match found {
                Ok((None, _, _)) => {}
                Ok((Some(asset), id, found)) => match asset.mark {
                    Some(mark) if mark.pool == id => return Ok(Some(found)),
                    _ => copy = Some(found),
                },
                Err(error) => unavailable = Some(error),
            }
        }
        match (copy, unavailable) {
            (_, Some(error)) => Err(error),
            (copy, None) => Ok(copy),
        }
    }

    /// Locks a volume and finds it in any pool, since pools can be renamed and moved to other disks.
    pub(crate) fn hold(&self, found: Found) -> Result<(Found, Guard)> {
        let lock = found.lock()?;
        if found.backend().find(&found.id)?.is_none()
            && let Some(elsewhere) = self.search(found.id)?
        {
            elsewhere.backend().make_durable(&elsewhere.id)?;
            return Ok((elsewhere, lock));
        }
        Ok((found, lock))
    }

    /// Fails if a volume that no pool has is in use on this node, as when its pool was removed from the
    /// configuration.
    pub(crate) fn expect_no_traces(&self, volume: &VolumeId) -> Result<()> {
        for driver in iter::once(self).chain(&self.others) {
            if (driver.kind.is_in_use)(volume)? {
                return Err(Error::new(
                    ErrorKind::Busy,
                    "the volume is in no pool of this driver, and is in use on this node; put its pool back into the configuration",
                ));
            }
        }
        Ok(())
    }

    /// Fails while the configuration is lost: a volume that the default pools lack may still exist in another one.
    pub(crate) fn expect_known_pools(&self) -> Result<()> {
        expect_known(&self.pools)
    }

    /// Fails if another pool than the named one has a volume of this name. Names belong to a pool, so that may
    /// be another volume.
    pub(crate) fn expect_nowhere(&self, name: &VolumeName, pool: &str) -> Result<()> {
        match self.search_name(name)? {
            None => Ok(()),
            Some(found) => Err(Error::new(
                ErrorKind::Conflict,
                format!("pool {pool} has no volume called {name}, and another pool has one; name its pool, or its handle"),
            )
            .because(format!("it is in pool {}", found.pool))),
        }
    }

    /// Returns the volume that the options identify, or its name where that is allowed, or the directory.
    pub(crate) fn identify(&self, volume: &Volume, dir: Option<&Path>) -> Result<Found> {
        volume.known_filesystem()?;
        let options: VolumeOptions = volume.options.parse()?;
        let told = match options.volume()? {
            Some(volume) => match &options.pool {
                Some(pool) => Some(self.open(self.pool(Some(pool))?, volume)?),
                None => self.search(volume)?,
            },
            None => match &volume.name {
                Some(name) if self.allows(name) => self.by_name(name, options.pool.as_deref())?,
                _ => None,
            },
        };
        let there = dir.map(|dir| self.owner(dir)).transpose()?.flatten();
        match (told, there) {
            (Some(told), Some(there)) if told.id != there => Err(Error::new(
                ErrorKind::Conflict,
                "another volume of this driver is mounted on the directory",
            )),
            (Some(told), _) => Ok(told),
            (None, Some(there)) if options.handle.is_none() => {
                self.search(there)?.ok_or_else(not_here)
            }
            (None, _) if options.handle.is_some() => Err(not_here()),
            (None, _) => Err(Error::new(
                ErrorKind::Denied,
                "the volume's options have no handle, and its name alone does not identify it; use a volume that was provisioned or made with `flexvol create`",
            )),
        }
    }

    /// Returns the volume of this driver that is mounted on a directory.
    pub(crate) fn owner(&self, dir: &Path) -> Result<Option<VolumeId>> {
        match Target::open(dir)? {
            Some(target) => (self.kind.owner)(&target),
            None => Ok(None),
        }
    }

    /// Returns what is mounted on a directory. There is no lock, so another call may mount a volume after the
    /// look for volumes and before the look for mounts; hence several looks.
    pub(crate) fn mounted_on(&self, dir: &Path) -> Result<MountedThing> {
        for _ in 0..LOOKS {
            let Some(target) = Target::open(dir)? else {
                return Ok(MountedThing::Nothing);
            };
            if let Some(volume) = (self.kind.owner)(&target)? {
                return Ok(MountedThing::Volume(volume));
            }
            if target.mounted()?.is_none() {
                return Ok(MountedThing::Nothing);
            }
            if let Some(uuid) = target.btrfs()?
                && let Some(volume) = self.volume_of_btrfs(uuid)
            {
                return Ok(MountedThing::Moved(volume, uuid));
            }
        }
        Ok(MountedThing::SomethingElse)
    }

    /// Returns the volume that was formatted with a btrfs of this UUID. A user with devices in a pod can move
    /// it to them (`btrfs device add` and `remove`); then the UUID is all that identifies it.
    fn volume_of_btrfs(&self, uuid: Uuid) -> Option<VolumeId> {
        let filesystem = Filesystem::Btrfs;
        let format = Some(Format { filesystem, uuid });
        let opened = self.pools.iter().filter_map(|pool| pool.open().ok());
        let mut marks = opened.flat_map(|opened| {
            let backend = opened.backend();
            let volumes = backend.catalog().volume_ids().unwrap_or_default();
            let mark = |volume| backend.find(volume).ok()??.mark;
            volumes.iter().filter_map(mark).collect::<Vec<_>>()
        });
        // A copy has the original's mark.
        marks
            .find(|mark| mark.format == format)
            .map(|mark| VolumeId::of(&mark.handle))
    }

    fn allows(&self, name: &VolumeName) -> bool {
        self.settings.names == Names::Dotted && name.cannot_be_inline()
    }

    pub(crate) fn by_name(&self, name: &VolumeName, pool: Option<&str>) -> Result<Option<Found>> {
        let pool = self.pool(pool)?;
        let opened = pool.open()?;
        opened
            .backend()
            .catalog()
            .lookup(name)?
            .map(|handle| self.open(pool, VolumeId::of(&handle)))
            .transpose()
    }

    /// Finds a volume by name in any pool. Answers `None` only if every pool could be searched.
    pub(crate) fn search_name(&self, name: &VolumeName) -> Result<Option<Found>> {
        let (mut named, mut unavailable): (Option<Found>, _) = (None, None);
        for pool in &self.pools {
            match (self.by_name(name, Some(pool.name())), &named) {
                (Ok(None), _) => {}
                (Ok(found), None) => named = found,
                // One of the two is a copy.
                (Ok(Some(found)), Some(before)) if found.id == before.id => {
                    return self.search(found.id);
                }
                (Ok(Some(_)), Some(_)) => {
                    return Err(Error::new(
                        ErrorKind::Conflict,
                        format!("several pools have a volume called {name}; name the pool"),
                    ));
                }
                (Err(error), _) => unavailable = Some(error),
            }
        }
        match (named, unavailable) {
            (None, Some(error)) => Err(error),
            (named, _) => Ok(named),
        }
    }

    /// Returns the device for `attach` and its companions, which run where nothing of the node can be seen.
    pub(crate) fn identity(&self, volume: &Volume) -> Result<String> {
        volume.known_filesystem()?;
        let options: VolumeOptions = volume.options.parse()?;
        match (options.volume()?, &volume.name) {
            // This text ends up in the node's status and in Kubernetes' logs, so it has the id instead of the
            // handle.
            (Some(id), _) => Ok(format!("{IDENTITY_DIR}/{id}")),
            (None, Some(name)) if self.allows(name) => Ok(format!("{IDENTITY_DIR}/{name}")),
            _ => Err(Error::new(
                ErrorKind::Denied,
                "the volume's options have no handle; use a volume that was provisioned or made with `flexvol create`",
            )),
        }
    }
}

/// Fails while the configuration is lost, so that these are not the driver's pools.
pub(crate) fn expect_known<B>(pools: &[Pool<B>]) -> Result<()> {
    let is_lost = |pool: &Pool<B>| pool.policy().keep_deleted.is_none();
    match pools.iter().any(is_lost) {
        true => Err(Error::new(ErrorKind::Configuration, LOST)),
        false => Ok(()),
    }
}

/// Returns the pool of this name. The names of other pools go only into the log, since authors of pods need not
/// know them.
pub(crate) fn named<'a, B>(pools: &'a [Pool<B>], name: Option<&str>) -> Result<&'a Pool<B>> {
    let unknown = |kind, message: String| {
        let names: Vec<_> = pools.iter().map(Pool::name).collect();
        Error::new(kind, message).because(format!("there are: {}", names.join(", ")))
    };
    let wanted = match (name, pools) {
        (None, [only]) => return Ok(only),
        (name, _) => name.unwrap_or("default"),
    };
    let found = pools.iter().find(|pool| pool.name() == wanted);
    found.ok_or_else(|| match name {
        Some(name) => unknown(
            ErrorKind::NotFound,
            format!("pool {name:?} is not one of this driver's"),
        ),
        None => unknown(
            ErrorKind::Invalid,
            "no pool was named, and this driver has several; name one".to_owned(),
        ),
    })
}

pub(crate) fn not_here() -> Error {
    Error::new(
        ErrorKind::NotFound,
        "there is no such volume on this node; check the handle, and that the pod runs where the volume is",
    )
}
