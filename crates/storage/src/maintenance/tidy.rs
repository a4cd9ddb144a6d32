//! Removal of what interrupted processes left behind.

use super::{LEFT_OVER, Leftover, ManagedBackend, ManagedDirectories};
use crate::{backend::Backend, pool::Pool, provision::free_dangling, volume_driver::VolumeDriver};
use flexvol_host::{Device, VolumeId, lock};
use flexvol_sdk::{Bytes, ErrorKind, Result, VolumeName};
use std::{collections::HashSet, time::Duration};

/// Receives each leftover when it is dealt with: a process that is ended at the next one keeps nobody from knowing it.
pub(super) type Tell<'a> = &'a mut dyn FnMut(Leftover);

/// Removes volumes whose removal was interrupted or whose retention time is over, then tidies each pool, then
/// removes the locks of volumes that no pool has.
pub(super) fn pools<B: Backend>(
    driver: &VolumeDriver,
    pools: &[Pool<B>],
    dry_run: bool,
    tell: Tell<'_>,
    tidy: impl Fn(&B, Tell<'_>) -> Result<()>,
) {
    deleted(driver, dry_run, tell);
    let mut known = Some(HashSet::new());
    for pool in pools {
        let opened = match dry_run {
            true => pool.open(),
            false => pool.open_to_change(),
        };
        let volumes = opened.and_then(|backend| {
            tidy(&backend, tell)?;
            backend.catalog().volume_ids()
        });
        match volumes {
            Ok(volumes) => {
                if let Some(known) = &mut known {
                    known.extend(volumes);
                }
            }
            Err(error) => {
                known = None;
                tell(Leftover {
                    what: format!("pool {}", pool.name()),
                    removed: Err(error),
                });
            }
        }
    }
    // Skipped if a pool cannot be read, because its volumes may exist.
    if let Some(known) = known {
        tidy_locks(&known, dry_run, tell);
    }
}

/// Removes volumes whose removal was interrupted, those whose retention time is over (both the one recorded at
/// deletion and the pool's present one), and those beyond what the pool may keep. [`pools`] reports a pool that
/// cannot be read.
fn deleted(driver: &VolumeDriver, dry_run: bool, tell: Tell<'_>) {
    for pool in &driver.pools {
        // A process that an earlier command left there may have got stuck in the middle of this.
        if !dry_run && pool.open_to_change().is_err() {
            continue;
        }
        for (volume, removed) in driver.finish_removals(pool, dry_run, None) {
            tell(Leftover {
                what: format!("volume {volume}, whose removal was not finished"),
                removed,
            });
        }
        for volume in driver.kept(pool).unwrap_or_default() {
            let volume = volume.id;
            // The holder of the lock may be restoring the volume.
            let Ok(lock) = lock::volume(&volume, Duration::ZERO) else {
                continue;
            };
            let (how_long, removed) = match driver.purge(pool, volume, lock, dry_run) {
                Ok(false) => continue,
                Ok(true) => ("kept for long enough", Ok(!dry_run)),
                Err(error) => ("is kept", Err(error)),
            };
            tell(Leftover {
                what: format!("volume {volume}, which was deleted and {how_long}"),
                removed,
            });
        }
        for (volume, removed) in driver.keep_at_most(pool, dry_run, None) {
            tell(Leftover {
                what: format!("volume {volume}, which was deleted and is more than is kept"),
                removed,
            });
        }
    }
}

/// Frees names that lead to no volume.
pub(super) fn names<B: Backend>(
    backend: &B,
    dangling: Vec<(VolumeName, VolumeId)>,
    dry_run: bool,
    tell: Tell<'_>,
) {
    for (name, volume) in dangling {
        tell(Leftover {
            what: format!("the name {name}, which leads to no volume"),
            removed: unless(dry_run, || free_name(backend, &name, &volume)),
        });
    }
}

/// Discards volumes whose creation was interrupted. A process that is creating one holds its lock.
pub(super) fn unfinished<B: ManagedBackend>(
    backend: &B,
    dry_run: bool,
    tell: Tell<'_>,
) -> Result<()> {
    for volume in backend.unfinished()? {
        let Ok(lock) = lock::volume(&volume, Duration::ZERO) else {
            continue;
        };
        backend.invalidate_cache();
        tell(Leftover {
            what: format!("the storage of volume {volume}, which was never finished"),
            removed: unless(dry_run, || {
                backend.catalog().discard(&volume)?;
                lock.retire()
            }),
        });
    }
    Ok(())
}

/// Frees space of interrupted growths. A process that is growing a volume holds its lock.
pub(super) fn excess<B: ManagedBackend>(backend: &B, dry_run: bool, tell: Tell<'_>) -> Result<()> {
    for volume in backend.catalog().volume_ids()? {
        // A volume that cannot be read is reported with its device.
        if backend.excess(&volume).unwrap_or_default() == Bytes(0) {
            continue;
        }
        let Ok(_lock) = lock::volume(&volume, Duration::ZERO) else {
            continue;
        };
        backend.invalidate_cache();
        let excess = backend.excess(&volume).unwrap_or_default();
        if excess > Bytes(0) {
            tell(Leftover {
                what: format!(
                    "{excess} behind the end of volume {volume}, which a growth took that was cut"
                ),
                removed: unless(dry_run, || backend.drop_excess(&volume)),
            });
        }
    }
    Ok(())
}

/// Releases idle devices of interrupted callouts.
pub(super) fn devices<B: ManagedBackend>(backend: &B, dry_run: bool, tell: Tell<'_>) -> Result<()> {
    for volume in backend.catalog().volume_ids()? {
        match idle_device(backend, &volume, dry_run) {
            Ok(None) => {}
            Ok(Some(leftover)) => tell(leftover),
            // It may be another backend's volume; `list` shows it.
            Err(error) if error.kind() == ErrorKind::Conflict => {}
            Err(error) => tell(Leftover {
                what: format!("the device of volume {volume}"),
                removed: Err(error),
            }),
        }
    }
    Ok(())
}

/// Removes directories of unfinished creations and removals.
pub(super) fn remains<B: ManagedDirectories>(
    backend: &B,
    dry_run: bool,
    tell: Tell<'_>,
) -> Result<()> {
    for remains in backend.remains()? {
        let removed = match dry_run {
            true => Ok(false),
            false => match backend.clear(&remains) {
                // A callout is working on it.
                Ok(false) => continue,
                cleared => cleared,
            },
        };
        tell(Leftover {
            what: remains.to_string(),
            removed,
        });
    }
    Ok(())
}

/// Restores limits that are not in force.
pub(super) fn limits<B: ManagedDirectories>(
    backend: &B,
    dry_run: bool,
    tell: Tell<'_>,
) -> Result<()> {
    for volume in backend.lost_limits()? {
        // A running growth records the new limit before it sets it.
        let Ok(_lock) = lock::volume(&volume, Duration::ZERO) else {
            continue;
        };
        if backend.lacks_limit(&volume)? {
            tell(Leftover {
                what: format!("the lack of a limit of volume {volume}"),
                removed: unless(dry_run, || backend.restore(&volume)),
            });
        }
    }
    Ok(())
}

fn unless(dry_run: bool, remove: impl FnOnce() -> Result<()>) -> Result<bool> {
    if dry_run {
        return Ok(false);
    }
    remove().map(|()| true)
}

fn free_name<B: Backend>(backend: &B, name: &VolumeName, volume: &VolumeId) -> Result<()> {
    let lock = lock::volume(volume, Duration::ZERO)?;
    backend.invalidate_cache();
    free_dangling(backend, name, volume)?;
    lock.retire()
}

/// Releases the device of a volume that an interrupted callout left and nobody uses.
fn idle_device<B: ManagedBackend>(
    backend: &B,
    volume: &VolumeId,
    dry_run: bool,
) -> Result<Option<Leftover>> {
    let is_leftover = |device: &Device| -> Result<bool> {
        Ok(backend.is_leftover(device)?
            && match device.claim() {
                Ok(_) => true,
                Err(busy) if busy.kind() == ErrorKind::Busy => false,
                Err(error) => return Err(error),
            })
    };
    let Some(device) = backend.mapped(volume, lock::hint(volume))? else {
        return Ok(None);
    };
    // The holder of the lock is about to use the device.
    let lock = match lock::volume(volume, Duration::ZERO) {
        Err(busy) if busy.kind() == ErrorKind::Busy => return Ok(None),
        lock => lock?,
    };
    backend.invalidate_cache();
    if !is_leftover(&device)? {
        return Ok(None);
    }
    let what = format!(
        "the idle device {} of volume {volume}",
        device.path().display()
    );
    let removed = unless(dry_run, || backend.unmap(device));
    drop(lock);
    Ok(Some(Leftover { what, removed }))
}

fn tidy_locks(known: &HashSet<VolumeId>, dry_run: bool, tell: Tell<'_>) {
    let files = match lock::files(LEFT_OVER) {
        Ok(files) => files,
        Err(error) => {
            return tell(Leftover {
                what: "locks".to_owned(),
                removed: Err(error),
            });
        }
    };
    for volume in files.into_iter().filter(|volume| !known.contains(volume)) {
        // A lock that is held belongs to a volume that is being created, or to another driver.
        let Ok(lock) = lock::volume(&volume, Duration::ZERO) else {
            continue;
        };
        tell(Leftover {
            what: format!("the lock of {volume}, which is no volume of this driver"),
            removed: unless(dry_run, || lock.retire()),
        });
    }
}
