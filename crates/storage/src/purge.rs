//! Removing volumes that were deleted and kept, and those whose removal was begun.

use crate::{
    any_pool::AnyPool,
    backend::Backend,
    identify::Found,
    mark::{Mark, State},
    observed::Goal,
    provision::remove,
    retention::{Deletion, Holding, Most, first_to_go},
    stored,
    volume_driver::VolumeDriver,
};
use flexvol_host::{
    VolumeId,
    clock::Moment,
    lock::{self, Guard},
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};
use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

impl VolumeDriver {
    /// The volumes of a pool that were deleted and are kept; those that cannot be read are none.
    pub(crate) fn kept(&self, pool: &AnyPool) -> Result<Vec<Holding>> {
        let opened = pool.open()?;
        let backend = opened.backend();
        let mut kept = Vec::new();
        for (id, size, mark) in own_volumes(backend)? {
            if let Some(deletion) = mark.deleted {
                kept.push(Holding {
                    id,
                    namespace: mark.namespace,
                    size,
                    metadata: backend.metadata(&id)?,
                    deletion,
                });
            }
        }
        Ok(kept)
    }

    /// Ends removals that were begun and cut: nobody asks again for that of a volume that was kept before. Returns
    /// those that went or would go. After `end` none is begun with.
    pub(crate) fn finish_removals(
        &self,
        pool: &AnyPool,
        dry_run: bool,
        end: Option<Instant>,
    ) -> Vec<(VolumeId, Result<bool>)> {
        let volumes = pool.open().and_then(|opened| own_volumes(opened.backend()));
        let mut tried = Vec::new();
        for (volume, _, mark) in volumes.unwrap_or_default() {
            if end.is_some_and(|end| Instant::now() >= end) {
                break;
            }
            if mark.state != State::Deleting {
                continue;
            }
            // Whoever holds the lock is removing it.
            let Ok(lock) = lock::volume(&volume, Duration::ZERO) else {
                continue;
            };
            let removed = self.open(pool, volume).and_then(|found| {
                let mark = own_mark(&found)?;
                if mark.is_none_or(|mark| mark.state != State::Deleting) {
                    return Ok(None);
                }
                if !dry_run {
                    remove(&found, lock, None, &Goal::Gone)?;
                }
                Ok(Some(!dry_run))
            });
            if let Some(removed) = removed.transpose() {
                tried.push((volume, removed));
            }
        }
        tried
    }

    /// Removes a volume if it still is one that was deleted, and kept for long enough; otherwise
    /// notes now and then how long it has been kept. Returns whether its time is over.
    pub(crate) fn purge(
        &self,
        pool: &AnyPool,
        volume: VolumeId,
        lock: Guard,
        dry_run: bool,
    ) -> Result<bool> {
        let found = self.open(pool, volume)?;
        let Some((mark, deletion)) = deleted(&found)? else {
            return Ok(false);
        };
        let counted = deletion.counted(&Moment::now()?);
        let over = counted.is_over(found.policy.keep_deleted).ok_or_else(|| {
            Error::new(
                ErrorKind::Configuration,
                "the driver's configuration is missing or empty, so it is not known how long the volume is kept",
            )
        })?;
        match (over, dry_run) {
            (_, true) => {}
            (true, false) => remove(&found, lock, None, &Goal::Gone)?,
            (false, false) if !counted.is_due(&deletion) => {}
            (false, false) => {
                let noted = mark.with_deleted(Some(counted));
                found.backend().set_mark(&volume, &noted)?;
            }
        }
        Ok(over)
    }

    /// Removes volumes that were deleted until those that are kept have no more of the pool than its
    /// configuration says. Only that ends their time, and never that somebody wants the room. Returns
    /// those that went or would go. After `end` none is begun with.
    pub(crate) fn keep_at_most(
        &self,
        pool: &AnyPool,
        dry_run: bool,
        end: Option<Instant>,
    ) -> Vec<(VolumeId, Result<bool>)> {
        let mut tried = Vec::new();
        let mut passed = HashSet::new();
        while end.is_none_or(|end| Instant::now() < end)
            && let Ok(Some(volume)) = self.beyond(pool, &passed)
        {
            // Whoever holds the lock may be taking it back.
            let lock = lock::volume(&volume, Duration::ZERO);
            // Meanwhile others may have removed some, or taken some back.
            let goes = lock.is_ok() && self.still_beyond(pool, &passed, volume);
            passed.insert(volume);
            let (Ok(lock), true) = (lock, goes) else {
                continue;
            };
            let removed = self.open(pool, volume).and_then(|found| {
                if deleted(&found)?.is_none() {
                    return Ok(None);
                }
                if !dry_run {
                    remove(&found, lock, None, &Goal::Gone)?;
                }
                Ok(Some(!dry_run))
            });
            if let Some(removed) = removed.transpose() {
                tried.push((volume, removed));
            }
        }
        tried
    }

    fn still_beyond(&self, pool: &AnyPool, tried: &HashSet<VolumeId>, volume: VolumeId) -> bool {
        let first = pool.open().and_then(|opened| {
            opened.backend().invalidate_cache();
            self.beyond(pool, tried)
        });
        matches!(first, Ok(Some(first)) if first == volume)
    }

    /// The one to go first, but for those that were tried: what is not known of them costs no other one.
    fn beyond(&self, pool: &AnyPool, tried: &HashSet<VolumeId>) -> Result<Option<VolumeId>> {
        let policy = pool.policy();
        let (Some(most), Some(_)) = (policy.keep_at_most, policy.keep_deleted) else {
            return Ok(None);
        };
        let opened = pool.open()?;
        let Some(size) = opened.backend().size()? else {
            return Ok(None);
        };
        let most = Most {
            size: most.of(size),
            metadata: opened.backend().max_kept_metadata()?,
        };
        let mut kept = self.kept(pool)?;
        kept.retain(|holding| !tried.contains(&holding.id));
        Ok(first_to_go(&kept, most, &Moment::now()?))
    }
}

/// What can be read of a pool's volumes. A copy from another pool is not removed here.
fn own_volumes(backend: &dyn Backend) -> Result<Vec<(VolumeId, Bytes, Mark)>> {
    let own = |id| {
        let asset = backend.find(&id).ok()??;
        let mark = asset.mark?;
        stored::expect_own(&mark, &id, backend).ok()?;
        Some((id, asset.size, mark))
    };
    Ok(backend
        .catalog()
        .volume_ids()?
        .into_iter()
        .filter_map(own)
        .collect())
}

/// The mark of a volume under its lock, if it is one that was deleted and is kept.
fn deleted(found: &Found) -> Result<Option<(Mark, Deletion)>> {
    Ok(own_mark(found)?.and_then(|mark| Some((mark.clone(), mark.deleted?))))
}

/// The mark of a volume under its lock.
fn own_mark(found: &Found) -> Result<Option<Mark>> {
    let backend = found.backend();
    backend.invalidate_cache();
    backend.make_durable(&found.id)?;
    let Some(mark) = backend.find(&found.id)?.and_then(|asset| asset.mark) else {
        return Ok(None);
    };
    stored::expect_own(&mark, &found.id, backend)?;
    Ok(Some(mark))
}
