//! Making a volume and removing it: the only callouts that change what a name leads to.
//!
//! A name and its volume come and go together, under the volume's lock: otherwise a volume that
//! is provisioned while its predecessor is deleted would lose its name, and the next call with
//! that name would make another one.

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
use flexvol_host::{VolumeId, clock::Moment, lock::Guard, random};
use flexvol_sdk::{Bytes, Error, ErrorKind, Filesystem, Handle, Provisioned, Result, VolumeName};
use std::time::{Duration, Instant};

/// For how long a deletion goes on to remove others that were deleted before.
const OTHERS: Duration = Duration::from_secs(5);

/// How often a name is taken again that another call takes away; each time one of the others has
/// come to its end.
const ATTEMPTS: usize = 16;

/// The volume that is asked for.
pub(crate) struct Request {
    pub(crate) name: VolumeName,
    /// The namespace of its claim.
    pub(crate) namespace: Option<String>,
    /// The size it has at least.
    pub(crate) size: Bytes,
    /// The file system; `None` leaves it to the pool.
    pub(crate) filesystem: Option<Filesystem>,
}

impl VolumeDriver {
    /// Makes a volume, or finds the one that an earlier call with this name made.
    pub(crate) fn make(&self, pool: &AnyPool, request: &Request) -> Result<Provisioned> {
        let filesystem = request.filesystem.unwrap_or(pool.policy().filesystem);
        let size = pool
            .policy()
            .admit(request.size.max((self.traits.smallest)(filesystem)))?;
        let (handle, found, lock) = self.bind(pool, &request.name)?;
        let context = CallContext {
            new: Some(NewVolume {
                handle,
                name: request.name.clone(),
                namespace: request.namespace.clone(),
                filesystem: request.filesystem.filter(|_| self.traits.has_filesystem),
            }),
            ..CallContext::default()
        };
        let reached = match found.reach(&lock, context, &Goal::Provisioned { size }) {
            Ok(reached) => reached,
            // What goes on in the background may still make the volume.
            Err(error) if error.kind() == ErrorKind::TimedOut => return Err(error),
            Err(error) => {
                give_up(&found, &request.name, lock);
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
        let filesystem = self
            .traits
            .has_filesystem
            .then(|| made.unwrap_or(filesystem));
        Ok(Provisioned::new(handle, reached.size())
            .with_option("handle", handle.to_string())
            .with_option("pool", found.pool)
            .with_filesystem(filesystem.map(Into::into)))
    }

    /// The volume that has the name, with its handle and under its lock.
    fn bind(&self, pool: &AnyPool, name: &VolumeName) -> Result<(Handle, Found, Guard)> {
        let mut opened = pool.open()?;
        for _ in 0..ATTEMPTS {
            let handle = opened.backend().catalog().bind(name, &random::handle()?)?;
            let found = self.at(pool, opened, VolumeId::of(&handle));
            let lock = found.lock()?;
            // The volume may have been deleted while this call waited for it.
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

    /// Deletes a volume, and every name it may have: its mark's and the caller's.
    pub(crate) fn delete_volume(&self, found: Found, called: Option<&VolumeName>) -> Result<()> {
        let (found, lock) = self.hold(found)?;
        if found.backend().find(&found.id)?.is_none() {
            // What was cut before it was a volume, and its device with it.
            found.backend().catalog().discard(&found.id)?;
            self.expect_no_traces(&found.id)?;
        }
        let goal = Goal::Deleted {
            now: Moment::now()?,
            keep: found.policy.keep_deleted,
        };
        remove(&found, lock, called, &goal)?;
        let pool = self.pool(Some(&found.pool))?;
        // The volume is deleted, whatever becomes of others, of which there are many where that is configured anew;
        // `gc` goes on.
        let end = Instant::now() + OTHERS;
        let mut others = Vec::new();
        if pool.policy().keep_at_most.is_some() {
            // They still have the room that was to become free.
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

    /// Makes a volume that was deleted and is kept a volume again, with the name it had; false
    /// where it was not deleted.
    pub(crate) fn undelete(&self, handle: Handle) -> Result<bool> {
        let found = self.search(VolumeId::of(&handle))?.ok_or_else(not_here)?;
        let lock = found.lock()?;
        // What is refused leaves the name to others.
        let mut world = found.opened.world(found.id, &lock, CallContext::default());
        expect_permitted(world.as_mut(), &Goal::Restored)?;
        drop(world);
        let asset = found.backend().find(&found.id)?;
        let kept = asset.and_then(|asset| asset.mark.filter(|mark| mark.deleted.is_some()));
        // First: restored without its name, it would not be found by those who provision it again.
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

/// A volume of that name may be there for somebody else.
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

/// After a failure: a name that leads to no volume would stay until somebody tidies up.
fn give_up(found: &Found, name: &VolumeName, lock: Guard) {
    match free_dangling(found.backend(), name, &found.id) {
        Ok(true) => retire(lock),
        Ok(false) => {}
        Err(error) => log::warn!("the name {name} leads to no volume: {}", error.report()),
    }
}

/// Frees a name that leads to no volume, with what a cut provision left there; false where the volume is there.
/// For whoever holds its lock.
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

/// After a failure: where there is no volume nobody needs its lock. What goes on in the background after its time is
/// over may still make it, and uses the lock.
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

/// Nobody will lock a volume again that is gone, so a lock's file that stays costs a name in /run.
fn retire(lock: Guard) {
    if let Err(error) = lock.retire() {
        log::debug!("cannot remove the lock: {}", error.report());
    }
}
