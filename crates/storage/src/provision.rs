//! Creating and removing volumes: the only callouts that change what a name leads to.
//!
//! A name and its volume are made and removed together, under the volume's lock. Otherwise a volume that is
//! provisioned while its predecessor is deleted would lose its name, and the next call with that name would
//! make another one.

use crate::{
    any_pool::AnyPool,
    backend::Backend,
    identify::{Found, not_here},
    kind::{CallContext, NewVolume},
    mark::Mark,
    observed::Goal,
    reconcile::expect_permitted,
    volume_driver::VolumeDriver,
};
use flexvol_host::{VolumeId, clock::Moment, lock::Guard};
use flexvol_sdk::{Bytes, Error, ErrorKind, Filesystem, Handle, Provisioned, Result, VolumeName};
use std::time::{Duration, Instant};

/// How long a deletion may spend on removing volumes that were deleted before.
const OTHERS: Duration = Duration::from_secs(5);

/// How many times a name is bound again after another call freed it. Each time one of the other calls has
/// finished.
const ATTEMPTS: usize = 16;

/// The request for a new volume.
pub(crate) struct Request {
    pub(crate) name: VolumeName,
    /// The namespace of the claim.
    pub(crate) namespace: Option<String>,
    /// The smallest acceptable size.
    pub(crate) size: Bytes,
    /// The file system; `None` for the pool's default.
    pub(crate) filesystem: Option<Filesystem>,
}

impl VolumeDriver {
    /// Makes a volume, or finds the one that an earlier call made for this name.
    pub(crate) fn make(&self, pool: &AnyPool, request: &Request) -> Result<Provisioned> {
        let filesystem = request.filesystem.unwrap_or(pool.policy().filesystem);
        let size = pool
            .policy()
            .admit(request.size.max((self.kind.smallest)(filesystem)))?;
        let (handle, found, lock) = self.bind(pool, &request.name)?;
        let context = CallContext {
            new: Some(NewVolume {
                handle,
                name: request.name.clone(),
                namespace: request.namespace.clone(),
                filesystem: request.filesystem.filter(|_| self.kind.has_filesystem),
            }),
            ..CallContext::default()
        };
        let reached = match found.reach(&lock, context, &Goal::Provisioned { size }) {
            Ok(reached) => reached,
            // A program that is still running may yet make the volume.
            Err(error) if error.kind() == ErrorKind::TimedOut => return Err(error),
            Err(error) => {
                free_name_after_failure(&found, &request.name, lock);
                return Err(error);
            }
        };
        let mark = reached
            .seen
            .asset
            .as_ref()
            .and_then(|asset| asset.mark.as_ref());
        let made = match mark {
            Some(mark) => expect_same(mark, request)?,
            None => None,
        };
        let filesystem = self.kind.has_filesystem.then(|| made.unwrap_or(filesystem));
        Ok(Provisioned::new(handle, reached.size())
            .with_option("handle", handle.to_string())
            .with_option("pool", found.pool)
            .with_filesystem(filesystem.map(Into::into)))
    }

    /// Binds the name to a volume, new or existing, and locks that volume.
    fn bind(&self, pool: &AnyPool, name: &VolumeName) -> Result<(Handle, Found, Guard)> {
        let mut opened = pool.open_to_change()?;
        for _ in 0..ATTEMPTS {
            let handle = opened.backend().catalog().bind(name, &Handle::random()?)?;
            let found = self.at(pool, opened, VolumeId::of(&handle));
            let lock = found.lock()?;
            // The volume may have been deleted while this call waited for its lock.
            if found.backend().catalog().lookup(name)? == Some(handle) {
                return Ok((handle, found, lock));
            }
            retire(lock);
            opened = found.opened;
        }
        Err(Error::new(
            ErrorKind::Busy,
            "the volume is made and deleted by other calls again and again",
        ))
    }

    /// Deletes a volume and its names: the one in its mark and the caller's.
    pub(crate) fn delete_volume(&self, found: Found, called: Option<&VolumeName>) -> Result<()> {
        let (found, lock) = self.hold(found)?;
        if found.backend().find(&found.id)?.is_none() {
            // Remove an interrupted creation first, and its device with it.
            found.backend().catalog().discard(&found.id)?;
            self.expect_no_traces(&found.id)?;
        }
        let goal = Goal::Deleted {
            name: called.cloned(),
            now: Moment::now()?,
            keep: found.policy.keep_deleted,
        };
        remove(&found, lock, called, &goal)?;
        let pool = self.pool(Some(&found.pool))?;
        // This deletion succeeded, whatever happens to others. There may be many after `keep_at_most` was
        // lowered; `gc` continues.
        let end = Instant::now() + OTHERS;
        let mut others = Vec::new();
        if pool.policy().keep_at_most.is_some() {
            // Interrupted removals still hold the space that was to be freed.
            others = self.finish_removals(pool, false, Some(end));
            others.extend(self.keep_at_most(pool, false, Some(end)));
        }
        for (volume, removed) in others {
            match removed {
                Ok(_) => log::info!("removed volume {volume}, for which no room is kept any more"),
                Err(error) => log::warn!("volume {volume} is still kept: {}", error.report()),
            }
        }
        Ok(())
    }

    /// Restores a volume that was deleted and is kept, with its old name. Returns false if it was not deleted.
    pub(crate) fn undelete(&self, handle: Handle) -> Result<bool> {
        let found = self.search(VolumeId::of(&handle))?.ok_or_else(not_here)?;
        let lock = found.lock()?;
        // Check first, so that a refusal does not take the name.
        let mut world = found.opened.world(found.id, &lock, CallContext::default());
        expect_permitted(world.as_mut(), &Goal::Restored)?;
        drop(world);
        let asset = found.backend().find(&found.id)?;
        let kept = asset.and_then(|asset| asset.mark.filter(|mark| mark.deleted.is_some()));
        // Bind the name first: a restored volume without its name would not be found when it is provisioned
        // again.
        let catalog = found.backend().catalog();
        if let Some(name) = kept.and_then(|mark| mark.name)
            && catalog.bind(&name, &handle)? != handle
        {
            catalog.free(&name, &found.id)?;
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("another volume is called {name} now; delete that one first"),
            ));
        }
        Ok(found
            .reach(&lock, CallContext::default(), &Goal::Restored)?
            .changed)
    }
}

pub(crate) fn remove(
    found: &Found,
    lock: Guard,
    called: Option<&VolumeName>,
    goal: &Goal,
) -> Result<()> {
    let asset = found.backend().find(&found.id)?;
    let marked = asset.and_then(|asset| asset.mark?.name);
    let reached = found.reach(&lock, CallContext::default(), goal)?;
    for name in marked.iter().chain(called) {
        found.backend().catalog().free(name, &found.id)?;
    }
    if reached.seen.asset.is_none() {
        retire(lock);
    }
    Ok(())
}

/// Fails if the volume of that name was made for another claim.
fn expect_same(mark: &Mark, request: &Request) -> Result<Option<Filesystem>> {
    if mark.namespace != request.namespace {
        return Err(Error::new(
            ErrorKind::Conflict,
            "a volume of this name was made for a claim in another namespace; choose another name",
        ));
    }
    match (mark.filesystem(), request.filesystem) {
        (Some(has), Some(asked)) if has != asked => Err(Error::new(
            ErrorKind::Conflict,
            format!("the volume exists with {has}, and {asked} was asked for; choose another name"),
        )),
        (has, _) => Ok(has),
    }
}

/// Frees the name after a failure; without a volume it would stay until `gc` runs.
fn free_name_after_failure(found: &Found, name: &VolumeName, lock: Guard) {
    match free_dangling(found.backend(), name, &found.id) {
        Ok(true) => retire(lock),
        Ok(false) => {}
        Err(error) => log::warn!("the name {name} leads to no volume: {}", error.report()),
    }
}

/// Frees a name that leads to no volume, with what an interrupted `provision` left there. Returns false if the
/// volume exists. The caller holds the volume's lock.
pub(crate) fn free_dangling(
    backend: &(impl Backend + ?Sized),
    name: &VolumeName,
    volume: &VolumeId,
) -> Result<bool> {
    if backend.find(volume)?.is_some() {
        return Ok(false);
    }
    backend.catalog().discard(volume)?;
    backend.catalog().free(name, volume)?;
    Ok(true)
}

/// Removes the lock's file after a failure, if there is no volume. After a timeout it stays: a program that is
/// still running may yet make the volume, and uses the lock.
pub(crate) fn retire_unused(
    lock: Guard,
    error: &Error,
    backend: &(impl Backend + ?Sized),
    volume: &VolumeId,
) {
    if error.kind() != ErrorKind::TimedOut && matches!(backend.find(volume), Ok(None)) {
        retire(lock);
    }
}

/// Removes the lock's file of a volume that is gone. Nobody will lock it again, so a failure costs only a file
/// in /run.
fn retire(lock: Guard) {
    if let Err(error) = lock.retire() {
        log::debug!("cannot remove the lock: {}", error.report());
    }
}
