//! The backend `lvm`: a volume is a logical volume of a volume group, or of a thin pool in one.

mod catalog;
mod commit;
mod create;
mod device;
mod doctor;
mod keys;
mod managed;
mod tags;

pub use keys::is_name_for_lvm;

use super::{
    Pools,
    keys::{of, read},
};
use flexvol_storage::{
    Asset, Backend, Block, BlockDriver, Catalog, Mark, Pool, PoolAdmin, Space, VolumeId,
    host::{
        block::probe,
        lock::PoolGuard,
        lvm::{self, GroupOrThinPool, LogicalVolume, View, Which, unsynced},
    },
    mark::State,
    sdk::{Bytes, Error, ErrorKind, Options, Result},
};
use keys::LvmKeys;
use std::{
    cell::RefCell,
    os::fd::AsFd,
    rc::Rc,
    time::{Duration, Instant},
};
use tags::{
    GROWN_FROM, UNFINISHED, growing_of, grown_from, has_state, is_unfinished, mark_of, opened,
    sealed,
};

/// A pool: a volume group or a thin pool.
struct Group {
    place: GroupOrThinPool,
    keys: LvmKeys,
    /// A cache of LVM's last answer, about one volume or all. Asking runs a program, so it is repeated only if this
    /// process changed something, other processes may have, or the answer is older than [`FRESH`].
    seen: RefCell<Option<Seen>>,
}

/// Disks come and go meanwhile, and people change the group: what takes long is followed by a new look.
const FRESH: Duration = Duration::from_secs(2);

#[derive(Clone)]
struct Seen {
    /// The volume that was asked for; `None` for all.
    volume: Option<String>,
    view: Rc<View>,
    /// The count [`lvm::changes`] before LVM was asked.
    changes: u64,
    /// When LVM was asked.
    at: Instant,
}

pub const BACKEND: super::Backend = super::Backend {
    name: "lvm",
    keys: read::<LvmKeys>,
    formats: true,
    default_pools: None,
    capabilities: BlockDriver::<Group>::capabilities,
    open: |pools, settings| BlockDriver::over(pools_of(pools), settings),
    maintenance: |pools, settings| {
        Box::new(PoolAdmin::<Block<Group>>::new(pools_of(pools), settings))
    },
    node_checks: doctor::of_node,
    pool_checks: doctor::of_pools,
};

/// Returns the configured pools. Each is opened when a callout needs it.
fn pools_of(pools: &Pools) -> Vec<Pool<Group>> {
    let pools = of::<LvmKeys>(pools).map(|(name, policy, keys)| {
        let mut keys = keys.clone();
        keys.rules.largest = policy.largest;
        keys.rules.keeps = policy.keep_deleted.is_none_or(|time| !time.is_zero());
        let place = keys.place.devices();
        Pool::new(name, policy.clone(), move || Ok(Group::new(keys.clone()))).at(place)
    });
    pools.collect()
}

impl Group {
    fn new(keys: LvmKeys) -> Group {
        Group {
            place: keys.place.clone(),
            keys,
            seen: RefCell::default(),
        }
    }

    fn forget(&self) {
        self.seen.replace(None);
    }

    /// Encodes a mark of this pool's as a tag.
    fn tag(&self, volume: &VolumeId, mark: &Mark) -> Result<String> {
        Ok(sealed(mark, volume, &self.facts()?.key()?))
    }

    /// Returns LVM's view of one volume, or of all if `None`.
    fn view(&self, volume: Option<&str>) -> Result<Rc<View>> {
        if let Some(seen) = self.seen()
            && (seen.volume.is_none() || seen.volume.as_deref() == volume)
        {
            return Ok(seen.view);
        }
        let (changes, at) = (lvm::changes(), Instant::now());
        let view = Rc::new(self.place.look(volume.map_or(Which::All, Which::One))?);
        self.seen.replace(Some(Seen {
            volume: volume.map(str::to_owned),
            view: view.clone(),
            changes,
            at,
        }));
        Ok(view)
    }

    /// Returns any cached view, for facts about the whole pool.
    fn facts(&self) -> Result<Rc<View>> {
        match self.seen() {
            Some(seen) => Ok(seen.view),
            None => self.view(None),
        }
    }

    fn seen(&self) -> Option<Seen> {
        let seen = self.seen.borrow();
        let is_valid = |seen: &Seen| seen.changes == lvm::changes() && seen.at.elapsed() < FRESH;
        seen.clone().filter(is_valid)
    }

    fn logical_volume(&self, volume: &VolumeId) -> Result<Option<LogicalVolume>> {
        let name = lvm::name_of(volume);
        Ok(self.view(Some(&name))?.volume(&name).cloned())
    }

    fn existing(&self, volume: &VolumeId) -> Result<LogicalVolume> {
        self.logical_volume(volume)?
            .filter(|found| !is_unfinished(found))
            .ok_or_else(|| Error::new(ErrorKind::NotFound, "the volume's storage is gone"))
    }

    /// Locks the pool's space and clears the cache, since another process may have taken space before.
    fn lock_space(&self) -> Result<PoolGuard> {
        let lock = self.names()?.lock()?;
        self.forget();
        Ok(lock)
    }

    /// Returns the view that is needed to create or grow a volume.
    fn view_to_take_from(&self, name: &str) -> Result<Rc<View>> {
        self.view(self.place.thin_pool.is_none().then_some(name))
    }

    /// Completes the growth of a blank volume by wiping its new end.
    fn wipe_grown(&self, volume: &VolumeId, found: &LogicalVolume, is_blank: bool) -> Result<()> {
        let Some((tag, from)) = grown_from(found).filter(|_| is_blank) else {
            return Ok(());
        };
        let disks = &self.facts()?.disks;
        let device = lvm::device(&self.place, disks, found, true, None)?;
        let claim = device.claim()?;
        probe::wipe_grown(&device, from)?;
        drop((claim, device));
        self.commit(volume, disks, |place, disks| {
            place.untag(disks, &found.name, tag)
        })
    }
}

/// Fails for a volume with snapshots: `lvremove` would remove them too, and `lvextend` refuses such a volume.
fn expect_plain(volume: &LogicalVolume) -> Result<()> {
    if volume.is_removed_alone {
        return Ok(());
    }
    // Backups make snapshots and remove them again.
    Err(Error::new(
        ErrorKind::Busy,
        "the volume has snapshots, or others lie on it, which would go with it and keep it from growing; see `lvs -o +lv_role` and remove them first",
    ))
}

impl Backend for Group {
    fn make_durable(&self, volume: &VolumeId) -> Result<()> {
        let group = &self.place.group;
        if unsynced::is_noted(group, volume)? {
            // Sync the present disks, since an earlier view may be stale. They can be listed even if the pool
            // cannot be read.
            match self.view(Some(&lvm::name_of(volume))) {
                Ok(view) => lvm::sync(view.disks.paths())?,
                Err(_) => lvm::sync(self.place.disks()?.paths())?,
            }
            unsynced::clear_note(group, volume)?;
        }
        Ok(())
    }

    fn invalidate_cache(&self) {
        self.forget();
    }

    fn catalog(&self) -> &dyn Catalog {
        self
    }

    fn find(&self, volume: &VolumeId) -> Result<Option<Asset>> {
        let Some(found) = self.logical_volume(volume)? else {
            return Ok(None);
        };
        if is_unfinished(&found) {
            return Ok(None);
        }
        let mark = match mark_of(&found)? {
            Some(tag) => Some(opened(tag, volume, &self.facts()?.key()?)?),
            None => None,
        };
        // Growth takes space even with `overcommit`: a thin pool is still asked how much it has.
        let promised = false;
        Ok(Some(
            Asset::new(found.size, mark).with_thin(self.place.thin_pool.is_some(), promised),
        ))
    }

    fn create(&self, volume: &VolumeId, size: Bytes, mark: &Mark) -> Result<()> {
        let name = lvm::name_of(volume);
        let lock = self.lock_space()?;
        let made = self.begin(&name, size, &lock)?;
        // The extents are taken, so the pool need not stay locked while they are wiped.
        drop(lock);
        let (mark, view) = (self.tag(volume, mark)?, self.facts()?);
        let device = lvm::device(&self.place, &view.disks, &made, false, None)?;
        let claim = device.claim()?;
        probe::wipe_ends(&device)?;
        drop((claim, device));
        self.retag(volume, Some(UNFINISHED), &mark)?;
        self.place.remember_first(&view);
        Ok(())
    }

    fn set_mark(&self, volume: &VolumeId, mark: &Mark) -> Result<()> {
        if mark.state == State::Deleting {
            // Snapshots are looked for anew.
            self.forget();
        }
        let found = self.existing(volume)?;
        let (old, new) = (mark_of(&found)?, self.tag(volume, mark)?);
        if old == Some(new.as_str()) {
            return Ok(());
        }
        if mark.state == State::Deleting {
            expect_plain(&found)?;
        }
        if mark.growing > growing_of(&found)? {
            lvm::expect_metadata_to_grow(&*self.facts()?, &self.keys.rules)?;
        }
        let marked = self.retag(volume, old, &new);
        marked.map_err(|error| match (error.kind(), mark.deleted) {
            (ErrorKind::Exhausted, Some(_)) => error.advise(
                "the volume is to be kept, which takes more: set `keep_at_most` for the pool and run `flexvol gc`, so that others that are kept make room",
            ),
            _ => error,
        })
    }

    fn grow(&self, volume: &VolumeId, to: Bytes) -> Result<()> {
        let lock = self.lock_space()?;
        let (name, rules) = (lvm::name_of(volume), &self.keys.rules);
        let view = self.view_to_take_from(&name)?;
        let found = self.existing(volume)?;
        let to = self.place.fitting(to, &view, rules)?;
        let is_blank = has_state(&found, State::Blank)?;
        if found.size >= to {
            return self.wipe_grown(volume, &found, is_blank);
        }
        lvm::expect_metadata_to_grow(&view, rules)?;
        let expect_room = |to: Bytes| {
            self.place.expect_room(found.size, to, &view, rules)?;
            let more = to.saturating_sub(found.size);
            self.place.expect_metadata_for_segments(more, &view, rules)
        };
        let more = found.least_growth(to, rules.largest);
        let more = self.place.fitting(more, &view, rules)?;
        let to = match more > to && expect_room(more).is_ok() {
            true => more,
            false => expect_room(to).map(|()| to)?,
        };
        if is_blank && self.place.thin_pool.is_none() && grown_from(&found).is_none() {
            let tag = format!("{GROWN_FROM}{}", found.size.0);
            self.retag(volume, None, &tag)?;
        }
        let grown = self.commit(volume, &self.facts()?.disks, |place, disks| {
            place.extend(disks, &found, to, lock.as_fd())
        });
        // LVM may fail although nothing was to do, or after its commit. The caller checks the device's size.
        let now = self.existing(volume)?;
        match grown {
            Err(error) if now.size < to => return Err(expect_plain(&now).err().unwrap_or(error)),
            Err(error) => {
                log::warn!("the volume has its size all the same: {}", error.report());
                self.make_durable(volume)?;
            }
            Ok(()) => {}
        }
        self.wipe_grown(volume, &now, is_blank)
    }

    fn destroy(&self, volume: &VolumeId) -> Result<()> {
        // Snapshots are looked for anew: they would go with the volume.
        self.forget();
        let Some(found) = self.logical_volume(volume)? else {
            return Ok(());
        };
        if !has_state(&found, State::Deleting)? {
            return Err(Error::new(
                ErrorKind::Conflict,
                "the volume is not marked as one that is being deleted; it is left alone",
            ));
        }
        expect_plain(&found)?;
        let disks = &self.facts()?.disks;
        let removed = self.commit(volume, disks, |place, disks| {
            lvm::remove(place, disks, &found)
        });
        match removed {
            Err(error) if self.logical_volume(volume)?.is_some() => Err(error),
            // Sync now, because no retry comes for a volume that is gone.
            _ => self.make_durable(volume),
        }
    }

    fn size(&self) -> Result<Option<Bytes>> {
        Ok(Some(self.facts()?.size))
    }

    fn metadata(&self, volume: &VolumeId) -> Result<Bytes> {
        let found = self.logical_volume(volume)?;
        Ok(found.map_or(Bytes(0), |found| found.metadata()))
    }

    fn max_kept_metadata(&self) -> Result<Option<Bytes>> {
        Ok(self.facts()?.metadata.max_kept())
    }

    fn capacity(&self, parameters: &Options) -> Result<Bytes> {
        Ok(self.space(parameters)?.largest)
    }

    fn space(&self, _: &Options) -> Result<Space> {
        // Reading an inactive thin pool activates it for a moment; a concurrent reader would deactivate it again.
        let asks_the_pool = self.place.thin_pool.is_some() && self.keys.rules.overcommit;
        let _lock = asks_the_pool.then(|| self.lock_space()).transpose()?;
        let view = self.view(None)?;
        view.id()?;
        let available = match lvm::expect_metadata_to_make(&view, &self.keys.rules) {
            Ok(()) => self.place.available(&view, &self.keys.rules)?,
            Err(_) => Bytes(0),
        };
        Ok(Space {
            largest: available,
            size: Some(view.size),
            free: Some(available),
            promised: Some(self.place.promised(&view)),
            shortfall: None,
        })
    }
}
