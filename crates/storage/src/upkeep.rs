//! What people do to a driver's pools beyond callouts: taking volumes over, and tidying up.

use crate::{
    backend::{Backend, BlockBackend},
    block::{Block, BlockDriver},
    inventory::Inventory,
    kind::{Details, Kind, LOCK_DEADLINE},
    mark::{Format, Mark, State},
    observed::Goal,
    pool::Pool,
};
use flexvol_host::{Device, lock, probe, superblock::Superblock};
use flexvol_sdk::{Bytes, Error, ErrorKind, Handle, Provisioned, Result, VolumeName};
use std::{
    collections::{BTreeMap, HashSet},
    path::{Path, PathBuf},
    time::Duration,
};

/// Leftovers younger than this may belong to a callout that is still running.
const LEFT_OVER: Duration = Duration::from_secs(3600);

/// A backend whose pools people can keep in order.
pub trait ManagedBackend: BlockBackend {
    /// Storage that is not a volume of the pool yet.
    type Stray;

    /// Opens storage that is to be taken over; `None` where there is none. Nobody else uses it.
    ///
    /// # Errors
    /// When it cannot become a volume of this pool as it is.
    fn stray(&self, path: &Path) -> Result<Option<Self::Stray>>;

    /// Its block device, to look at what it holds.
    ///
    /// # Errors
    /// When there is none.
    fn look(&self, stray: &Self::Stray, volume: &Handle) -> Result<Device>;

    /// Makes it a volume with this mark: both or nothing.
    ///
    /// # Errors
    /// When it is not one afterwards.
    fn take(&self, stray: Self::Stray, volume: &Handle, mark: &Mark) -> Result<()>;

    /// Names without a volume that are older than `age`.
    ///
    /// # Errors
    /// When the pool cannot be read.
    fn dangling_names(&self, age: Duration) -> Result<Vec<(VolumeName, Handle)>>;

    /// Whether a device would stay after its last user.
    ///
    /// # Errors
    /// When the device cannot be asked.
    fn stays(&self, device: &Device) -> Result<bool>;
}

/// What is to be taken over, and as what.
#[derive(Clone, Debug)]
pub struct Adoption {
    /// Where it is.
    pub path: PathBuf,
    /// What the volume is called.
    pub name: VolumeName,
    /// The namespace of its claim.
    pub namespace: String,
    /// The size it shall have at least; it is grown, never shrunk.
    pub size: Option<Bytes>,
    /// Blank storage is welcome: it is formatted when it is first mounted.
    pub format: bool,
    /// The pool, by its name in the configuration.
    pub pool: Option<String>,
}

/// A volume that was taken over.
#[derive(Clone, Debug)]
pub struct Adopted {
    /// The volume, as `provision` would have answered it.
    pub volume: Provisioned,
    /// False where it had been taken over before.
    pub changed: bool,
}

/// Something that was left behind.
#[derive(Debug)]
pub struct Leftover {
    /// What it is, for people.
    pub what: String,
    /// Whether it is gone now: with a dry run never, otherwise unless an error says why.
    pub removed: Result<bool>,
}

/// What can be done to the pools of a driver.
pub trait Upkeep: Inventory {
    /// Makes existing storage a volume. What it holds is looked at first: a whole file system of
    /// a known kind is kept as it is, proven blankness is formatted by the first mount if that is
    /// asked for, and everything else is refused and left alone.
    ///
    /// # Errors
    /// [`ErrorKind::NotBlank`] where it holds something else, [`ErrorKind::Conflict`] where it
    /// cannot be a volume of the pool or the name is taken.
    fn adopt(&self, adoption: &Adoption) -> Result<Adopted>;

    /// Removes what killed processes left behind, or with `dry_run` only names it: names that
    /// lead to no volume, idle devices of volumes that would stay, locks of volumes that are gone.
    fn tidy(&self, dry_run: bool) -> Vec<Leftover>;
}

impl<B: ManagedBackend> Upkeep for BlockDriver<B> {
    fn adopt(&self, adoption: &Adoption) -> Result<Adopted> {
        let pool = self.pool(adoption.pool.as_deref())?;
        let backend = pool.open()?;
        let before = backend.catalog().lookup(&adoption.name)?;
        let stray = backend.stray(&adoption.path)?;
        let existing = before.map(|handle| backend.find(&handle)).transpose()?;
        let (handle, changed) = match (stray, before, existing.flatten()) {
            (Some(_), _, Some(_)) => {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    "there is a volume of this name already; choose another one",
                ));
            }
            (None, Some(handle), Some(_)) => (handle, false),
            (None, _, _) => {
                return Err(Error::new(ErrorKind::NotFound, "there is no such image")
                    .because(adoption.path.display().to_string()));
            }
            (Some(stray), bound, None) => {
                let handle = match bound {
                    Some(handle) => handle,
                    None => flexvol_host::random::handle()?,
                };
                let lock = lock::volume(&handle, LOCK_DEADLINE)?;
                let taken = self.take_over(&backend, stray, handle, adoption, pool);
                if let Err(error) = taken {
                    // There is no such volume, so nobody needs its lock.
                    lock.retire()?;
                    return Err(error);
                }
                (handle, true)
            }
        };
        self.finish(pool, backend, handle, adoption, changed)
    }

    fn tidy(&self, dry_run: bool) -> Vec<Leftover> {
        let mut leftovers = Vec::new();
        let mut known = Some(HashSet::new());
        for pool in self.all_pools() {
            match pool
                .open()
                .and_then(|backend| tidy_pool(&backend, dry_run, &mut leftovers))
            {
                Ok(handles) => {
                    if let Some(known) = &mut known {
                        known.extend(handles);
                    }
                }
                Err(error) => {
                    known = None;
                    leftovers.push(Leftover {
                        what: format!("pool {}", pool.name()),
                        removed: Err(error),
                    });
                }
            }
        }
        // The volumes of a pool that cannot be read may be there all the same.
        if let Some(known) = known {
            tidy_locks(&known, dry_run, &mut leftovers);
        }
        leftovers
    }
}

impl<B: ManagedBackend> BlockDriver<B> {
    fn take_over(
        &self,
        backend: &B,
        stray: B::Stray,
        handle: Handle,
        adoption: &Adoption,
        pool: &Pool<B>,
    ) -> Result<()> {
        let (found, size) = {
            let device = backend.look(&stray, &handle)?;
            let _claim = device.claim()?;
            (probe::thorough(&device), device.size()?)
        };
        pool.policy()
            .admit(size.max(adoption.size.unwrap_or_default()))?;
        let format = fit(found, size, adoption.format)?;
        if let Some(format) = &format {
            self.refuse_copies(format)?;
        }
        let mark = Mark {
            state: match format {
                Some(_) => State::Ready,
                None => State::Blank,
            },
            format,
            ..Mark::blank(
                handle,
                backend.catalog().id(),
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
        backend.take(stray, &handle, &mark)
    }

    /// Two file systems with one UUID cannot both be mounted, and which one is meant is a guess.
    fn refuse_copies(&self, format: &Format) -> Result<()> {
        for pool in self.all_pools() {
            let backend = pool.open()?;
            for handle in backend.catalog().handles()? {
                let asset = backend.find(&handle)?;
                let other = asset.and_then(|asset| asset.mark?.format);
                if other.is_some_and(|other| other.uuid == format.uuid) {
                    return Err(Error::new(
                        ErrorKind::Conflict,
                        "a volume holds the same file system (same UUID), so this is a copy of it; give the copy a new UUID first (xfs_admin -U generate, tune2fs -U random, btrfstune -u)",
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whole mebibytes, and the size asked for; the next mount lets the file system follow.
    fn finish(
        &self,
        pool: &Pool<B>,
        backend: B,
        handle: Handle,
        adoption: &Adoption,
        taken: bool,
    ) -> Result<Adopted> {
        let asset = backend
            .find(&handle)?
            .ok_or_else(|| Error::new(ErrorKind::NotFound, "the volume is gone"))?;
        let is_blank = asset
            .mark
            .as_ref()
            .is_some_and(|mark| mark.format.is_none());
        let least = if is_blank {
            Block::<B>::smallest(pool.policy().filesystem)
        } else {
            asset.size
        };
        let to = adoption.size.unwrap_or_default().max(asset.size).max(least);
        let goal = Goal::StorageGrown {
            to: pool.policy().admit(to)?,
        };
        let found = self.at(pool, backend, handle);
        let reached = self.reach(&found, Details::default(), &goal)?;
        let mark = reached
            .seen
            .asset
            .as_ref()
            .and_then(|asset| asset.mark.as_ref());
        Ok(Adopted {
            volume: Provisioned {
                options: BTreeMap::from([
                    ("handle".to_owned(), handle.to_string()),
                    ("pool".to_owned(), pool.name().to_owned()),
                ]),
                size: reached.size(),
                handle,
                filesystem: mark
                    .and_then(|mark| mark.format)
                    .map(|format| format.filesystem),
            },
            changed: taken || reached.changed,
        })
    }
}

/// The file system that is kept; `None` for blank storage.
fn fit(found: probe::Content, size: Bytes, format: bool) -> Result<Option<Format>> {
    let refuse = |kind, why: String| Err(Error::new(kind, why));
    match found {
        probe::Content::Formatted(Superblock { size: spans, .. }) if spans > size => refuse(
            ErrorKind::Conflict,
            format!("the image has {size} and its file system spans {spans}: its end is missing"),
        ),
        probe::Content::Formatted(found) => Ok(Some(Format {
            filesystem: found.filesystem,
            uuid: found.uuid,
        })),
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

/// Tidies one pool and returns the volumes that are in it.
fn tidy_pool<B: ManagedBackend>(
    backend: &B,
    dry_run: bool,
    leftovers: &mut Vec<Leftover>,
) -> Result<Vec<Handle>> {
    for (name, handle) in backend.dangling_names(LEFT_OVER)? {
        leftovers.push(Leftover {
            what: format!("the name {name}, which leads to no volume"),
            removed: unless(dry_run, || free_name(backend, &name, &handle)),
        });
    }
    let handles = backend.catalog().handles()?;
    for handle in &handles {
        match idle_device(backend, handle, dry_run) {
            Ok(None) => {}
            Ok(Some(leftover)) => leftovers.push(leftover),
            Err(error) => leftovers.push(Leftover {
                what: format!("the device of volume {handle}"),
                removed: Err(error),
            }),
        }
    }
    Ok(handles)
}

fn unless(dry_run: bool, remove: impl FnOnce() -> Result<()>) -> Result<bool> {
    if dry_run {
        return Ok(false);
    }
    remove().map(|()| true)
}

fn free_name<B: Backend>(backend: &B, name: &VolumeName, handle: &Handle) -> Result<()> {
    let lock = lock::volume(handle, Duration::ZERO)?;
    if backend.find(handle)?.is_none() {
        backend.catalog().free(name, handle)?;
    }
    lock.retire()
}

/// A device of a volume that nobody uses and that would stay for ever.
fn idle_device<B: ManagedBackend>(
    backend: &B,
    handle: &Handle,
    dry_run: bool,
) -> Result<Option<Leftover>> {
    let is_leftover = |device: &Device| -> Result<bool> {
        Ok(backend.stays(device)?
            && match device.claim() {
                Ok(_) => true,
                Err(busy) if busy.kind() == ErrorKind::Busy => false,
                Err(error) => return Err(error),
            })
    };
    let Some(device) = backend.mapped(handle, lock::hint(handle))? else {
        return Ok(None);
    };
    // Whoever holds the lock is about to use the device.
    let lock = match lock::volume(handle, Duration::ZERO) {
        Err(busy) if busy.kind() == ErrorKind::Busy => return Ok(None),
        lock => lock?,
    };
    if !is_leftover(&device)? {
        return Ok(None);
    }
    let what = format!(
        "the idle device {} of volume {handle}",
        device.path().display()
    );
    let removed = unless(dry_run, || backend.unmap(device));
    drop(lock);
    Ok(Some(Leftover { what, removed }))
}

fn tidy_locks(known: &HashSet<Handle>, dry_run: bool, leftovers: &mut Vec<Leftover>) {
    let files = match lock::files(LEFT_OVER) {
        Ok(files) => files,
        Err(error) => {
            return leftovers.push(Leftover {
                what: "locks".to_owned(),
                removed: Err(error),
            });
        }
    };
    for handle in files.into_iter().filter(|handle| !known.contains(handle)) {
        // One that is held belongs to a volume that is just being made, or to another driver.
        let Ok(lock) = lock::volume(&handle, Duration::ZERO) else {
            continue;
        };
        leftovers.push(Leftover {
            what: format!("the lock of volume {handle}, which is gone"),
            removed: unless(dry_run, || lock.retire()),
        });
    }
}
