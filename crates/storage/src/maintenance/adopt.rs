//! Adoption of storage that others made.

use super::{Adopted, Adoption, ManagedBackend, PoolAdmin};
use crate::{
    backend::Backend,
    block::Block,
    identify::{expect_known, named},
    kind::{CallContext, Kind, LOCK_DEADLINE},
    mark::{Format, Mark, Origin, State},
    observed::Goal,
    pool::Pool,
    provision::retire_unused,
    stored::expect_own,
};
use flexvol_host::{
    Device, VolumeId,
    block::probe,
    lock,
    mount::Detached,
    superblock::{Demand, Superblock},
    worker::{self, Access},
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Filesystem, Handle, Provisioned, Result};

impl<B: ManagedBackend> PoolAdmin<Block<B>> {
    pub(super) fn adopt_storage(&self, adoption: &Adoption) -> Result<Adopted> {
        expect_known(&self.pools)?;
        let pool = named(&self.pools, adoption.pool.as_deref())?;
        let backend = pool.open_to_change()?;
        let before = backend.catalog().lookup(&adoption.name)?;
        let existing = before
            .map(|handle| backend.find(&VolumeId::of(&handle)))
            .transpose()?;
        let existing = existing.flatten();
        let (handle, changed) = match (backend.open_unmanaged(&adoption.path), before, existing) {
            (Ok(Some(_)), _, Some(_)) => return Err(taken()),
            (Err(error), _, Some(_)) => {
                return Err(taken()
                    .advise(format_args!("nor can it be taken over: {error}"))
                    .because(error));
            }
            (Err(error), _, None) => return Err(error),
            (Ok(None), Some(handle), Some(asset)) => {
                let mark = asset.mark.ok_or_else(taken)?;
                if mark.namespace.as_ref() != Some(&adoption.namespace) {
                    return Err(taken());
                }
                let volume = VolumeId::of(&handle);
                expect_own(&mark, &volume, &backend)?;
                // If the path is mistyped, the caller must not be told that the data are there.
                if mark.adopted != Some(Origin::of(&adoption.path)) {
                    return Err(Error::new(
                        ErrorKind::NotFound,
                        "there is no such image; a volume of this name is there, which was not made of it",
                    )
                    .because(adoption.path.display().to_string()));
                }
                let _lock = lock::volume(&volume, LOCK_DEADLINE)?;
                backend.invalidate_cache();
                backend.complete(&volume)?;
                (handle, false)
            }
            (Ok(None), _, _) => {
                return Err(Error::new(ErrorKind::NotFound, "there is no such image")
                    .because(adoption.path.display().to_string()));
            }
            (Ok(Some(unmanaged)), bound, None) => {
                let handle = match bound {
                    Some(handle) => handle,
                    None => Handle::random()?,
                };
                let lock = lock::volume(&VolumeId::of(&handle), LOCK_DEADLINE)?;
                backend.invalidate_cache();
                let taken = self.take_over(&backend, unmanaged, handle, adoption, pool);
                if let Err(error) = taken {
                    backend.invalidate_cache();
                    // If the storage could not be given back, it is a volume and keeps its lock.
                    retire_unused(lock, &error, &backend, &VolumeId::of(&handle));
                    return Err(error);
                }
                (handle, true)
            }
        };
        self.finish(pool, &backend, handle, adoption, changed)
    }

    fn take_over(
        &self,
        backend: &B,
        unmanaged: B::Unmanaged,
        handle: Handle,
        adoption: &Adoption,
        pool: &Pool<B>,
    ) -> Result<()> {
        let volume = VolumeId::of(&handle);
        let device = backend.device_of(&unmanaged, &volume)?;
        let size = device.size()?;
        pool.policy()
            .admit(size.max(adoption.size.unwrap_or_default()))?;
        let claim = device.claim()?;
        let found = fit(probe::thorough(&device), size, adoption.format)?;
        if let Some(found) = &found {
            expect_nothing_behind(&device, size, found)?;
            expect_no_demand(&device)?;
        }
        drop(claim);
        let format = found.map(|found| Format {
            filesystem: found.filesystem,
            uuid: found.uuid,
        });
        if let Some(format) = &format {
            self.refuse_copies(format)?;
            worker::at(pool.name(), pool.place(), Access::Write)?;
            expect_mountable(&device, format.filesystem)?;
        }
        drop(device);
        let mark = Mark {
            state: match format {
                Some(_) => State::Ready,
                None => State::Blank,
            },
            format,
            adopted: Some(Origin::of(&adoption.path)),
            ..Mark::blank(
                handle,
                backend.catalog().id()?,
                Some(adoption.name.clone()),
                Some(adoption.namespace.clone()),
            )
        };
        if backend.catalog().bind(&adoption.name, &handle)? != handle {
            return Err(Error::new(
                ErrorKind::Conflict,
                "another volume took the name meanwhile",
            ));
        }
        backend.adopt(unmanaged, &volume, &mark)
    }

    /// Refuses a file system whose UUID a volume already has: both could not be mounted, and it is unclear
    /// which one is meant.
    fn refuse_copies(&self, format: &Format) -> Result<()> {
        for pool in self.pools.iter() {
            let has_it = pool.open().and_then(|backend| holds(&backend, format));
            let unknown = |error: Error| {
                error.context(format_args!(
                    "it is not known whether a volume in pool {} holds the same file system",
                    pool.name()
                ))
            };
            if has_it.map_err(unknown)? {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    "a volume holds the same file system (same UUID), so this is a copy of it; give the copy a new UUID first (xfs_admin -U generate, tune2fs -U random, btrfstune -u)",
                ));
            }
        }
        Ok(())
    }

    /// Grows the storage to whole mebibytes and the requested size; the next mount grows the file system.
    fn finish(
        &self,
        pool: &Pool<B>,
        backend: &B,
        handle: Handle,
        adoption: &Adoption,
        taken: bool,
    ) -> Result<Adopted> {
        let volume = VolumeId::of(&handle);
        let asset = backend
            .find(&volume)?
            .ok_or_else(|| Error::new(ErrorKind::NotFound, "the volume is gone"))?;
        let blank = asset.mark.as_ref().filter(|mark| mark.format.is_none());
        let least =
            blank.map(|mark| Block::<B>::smallest(mark.asked.unwrap_or(pool.policy().filesystem)));
        let to = adoption
            .size
            .unwrap_or_default()
            .max(asset.size)
            .max(least.unwrap_or_default());
        let goal = Goal::StorageGrown {
            to: pool.policy().admit(to)?,
        };
        let found = self
            .driver
            .open(self.driver.pool(Some(pool.name()))?, volume)?;
        let reached = self
            .driver
            .reach(found, CallContext::default(), |_| Ok(goal))?;
        let mark = reached
            .seen
            .asset
            .as_ref()
            .and_then(|asset| asset.mark.as_ref());
        let format = mark.and_then(|mark| mark.format);
        Ok(Adopted {
            volume: Provisioned::new(handle, reached.size())
                .with_option("handle", handle.to_string())
                .with_option("pool", pool.name())
                .with_filesystem(format.map(|format| format.filesystem.into())),
            changed: taken || reached.changed,
        })
    }
}

/// Whether a volume of the pool holds this file system.
fn holds(backend: &impl Backend, format: &Format) -> Result<bool> {
    let pool = backend.catalog().id()?;
    for volume in backend.catalog().volume_ids()? {
        // A copy is no volume, and may be what is taken over.
        let mark = backend.find(&volume)?.and_then(|asset| asset.mark);
        let other = mark.filter(|mark| mark.is_of(&volume, pool));
        if other.is_some_and(|mark| mark.format.is_some_and(|it| it.uuid == format.uuid)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn taken() -> Error {
    Error::new(
        ErrorKind::Conflict,
        "there is a volume of this name already; choose another one",
    )
}

/// Returns the file system to keep; `None` for blank storage.
fn fit(found: probe::Content, size: Bytes, format: bool) -> Result<Option<Superblock>> {
    let refuse = |kind, why: String| Err(Error::new(kind, why));
    match found {
        probe::Content::Formatted(Superblock { size: spans, .. }) if spans > size => refuse(
            ErrorKind::Conflict,
            format!(
                "the image has {size:#} and its file system spans {spans:#}: its end is missing"
            ),
        ),
        probe::Content::Formatted(found) => Ok(Some(found)),
        probe::Content::Blank if format => Ok(None),
        probe::Content::Blank => refuse(
            ErrorKind::Invalid,
            "the image is blank; with --format it is taken over and formatted by its first mount"
                .to_owned(),
        ),
        probe::Content::Foreign(what) => refuse(
            ErrorKind::NotBlank,
            format!("the image holds {what}; it was left as it is"),
        ),
        probe::Content::Unreadable => refuse(
            ErrorKind::Unreadable,
            "the image cannot be read; it was left as it is".to_owned(),
        ),
    }
}

/// Fails if there is data behind the file system, which would overwrite it when it grows.
fn expect_nothing_behind(device: &Device, size: Bytes, found: &Superblock) -> Result<()> {
    let (filesystem, spans) = (found.filesystem, found.size);
    if probe::is_blank_behind(device, spans)? {
        return Ok(());
    }
    // The device does not show a partial sector at the end.
    let (from, length) = (spans.0, size.0.saturating_sub(spans.0) + 512);
    Err(Error::new(
        ErrorKind::NotBlank,
        format!(
            "the image has {size}, its {filesystem} spans the first {spans}, and behind that lies other data, over which it would grow; the image was left as it is; copy what you need of that data, then zero it (fallocate -n -z -o {from} -l {length}) and try again"
        ),
    ))
}

/// Fails if the superblock demands mount options or the like, which the driver's mounts cannot all override.
fn expect_no_demand(device: &Device) -> Result<()> {
    let (what, command) = match probe::demand(device)? {
        None => return Ok(()),
        Some(Demand::MountOptions) => (
            "mount options of its own in its superblock, which volumes may not have",
            "tune2fs -E mount_opts=",
        ),
        Some(Demand::MultipleMountProtection) => (
            "multiple mount protection, which lets each mount of it wait",
            "tune2fs -O ^mmp",
        ),
    };
    Err(Error::new(
        ErrorKind::Conflict,
        format!(
            "the image's file system has {what}; it was left as it is; take that out ({command}) and try again"
        ),
    ))
}

/// Fails if the kernel cannot mount the file system writable: its journal may be on another device, or it may
/// be the seed of others. Only the kernel knows. The mount is attached nowhere.
fn expect_mountable(device: &Device, filesystem: Filesystem) -> Result<()> {
    let mounted = Detached::new(device, filesystem)
        .map_err(|error| error.advise("the image was left as it is"))?;
    if mounted.is_read_only()? {
        return Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "the image's {filesystem} can only be read, and volumes are written; it was left as it is"
            ),
        ));
    }
    Ok(())
}
