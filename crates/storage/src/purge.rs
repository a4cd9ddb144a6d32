//! Removal of kept volumes, and completion of interrupted removals.

use crate::{
    any_pool::AnyPool,
    backend::Backend,
    identify::Found,
    mark::{Mark, State},
    observed::Goal,
    provision::remove,
    retention::{Deletion, KeptLimits, KeptVolume, next_to_purge},
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
    /// Lists the kept volumes of a pool; unreadable volumes are skipped.
    pub(crate) fn kept(&self, pool: &AnyPool) -> Result<Vec<KeptVolume>> {
        let opened = pool.open()?;
        let backend = opened.backend();
        let mut kept = Vec::new();
        for (id, size, mark) in readable_volumes(backend)? {
            if let Some(deletion) = mark.deleted {
                kept.push(KeptVolume {
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

    /// Completes interrupted removals: nobody repeats the removal of a kept volume. Returns the volumes that
    /// were, or in a dry run would be, removed. Begins none after `end`.
    pub(crate) fn finish_removals(
        &self,
        pool: &AnyPool,
        dry_run: bool,
        end: Option<Instant>,
    ) -> Vec<(VolumeId, Result<bool>)> {
        let volumes = pool
            .open()
            .and_then(|opened| readable_volumes(opened.backend()));
        let mut tried = Vec::new();
        for (volume, _, mark) in volumes.unwrap_or_default() {
            if end.is_some_and(|end| Instant::now() >= end) {
                break;
            }
            if mark.state != State::Deleting {
                continue;
            }
            // The holder of the lock is removing the volume.
            let Ok(lock) = lock::volume(&volume, Duration::ZERO) else {
                continue;
            };
            let removed = self.open(pool, volume).and_then(|found| {
                let mark = fresh_mark(&found)?;
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

    /// Removes a volume if it was deleted and its retention time is over. Otherwise it occasionally records in
    /// the mark how long the volume has been kept. Returns whether the time is over.
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
        let over = counted.has_expired(found.policy.keep_deleted).ok_or_else(|| {
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
                found.begin_change()?;
                found.backend().set_mark(&volume, &noted)?;
            }
        }
        Ok(over)
    }

    /// Removes kept volumes until the rest takes no more of the pool than its configuration allows. Only that
    /// limit ends their retention early, never another volume's need for space. Returns the volumes that were,
    /// or in a dry run would be, removed. Begins none after `end`.
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
            // The holder of the lock may be restoring the volume.
            let lock = lock::volume(&volume, Duration::ZERO);
            // Meanwhile other calls may have removed or restored volumes.
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

    /// Returns the volume to remove first. Those tried before do not count, so that one that cannot be removed does
    /// not cost another.
    fn beyond(&self, pool: &AnyPool, tried: &HashSet<VolumeId>) -> Result<Option<VolumeId>> {
        let policy = pool.policy();
        let (Some(most), Some(_)) = (policy.keep_at_most, policy.keep_deleted) else {
            return Ok(None);
        };
        let opened = pool.open()?;
        let Some(size) = opened.backend().size()? else {
            return Ok(None);
        };
        let limits = KeptLimits {
            size: most.of(size),
            metadata: opened.backend().max_kept_metadata()?,
        };
        let mut kept = self.kept(pool)?;
        kept.retain(|volume| !tried.contains(&volume.id));
        Ok(next_to_purge(&kept, limits, &Moment::now()?))
    }
}

/// Lists the readable volumes of a pool. A copy from another pool is skipped, and so never removed here.
fn readable_volumes(backend: &dyn Backend) -> Result<Vec<(VolumeId, Bytes, Mark)>> {
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

/// Reads the mark of a locked volume, if it was deleted and is kept.
fn deleted(found: &Found) -> Result<Option<(Mark, Deletion)>> {
    Ok(fresh_mark(found)?.and_then(|mark| Some((mark.clone(), mark.deleted?))))
}

/// Reads the mark of a locked volume.
fn fresh_mark(found: &Found) -> Result<Option<Mark>> {
    let backend = found.backend();
    backend.invalidate_cache();
    backend.make_durable(&found.id)?;
    let Some(mark) = backend.find(&found.id)?.and_then(|asset| asset.mark) else {
        return Ok(None);
    };
    stored::expect_own(&mark, &found.id, backend)?;
    Ok(Some(mark))
}
