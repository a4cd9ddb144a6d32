//! Pools of one driver on the same file system. They share its space, so each must respect what the others owe to their
//! images.

use super::{
    Allocation, Image, Pool,
    lacking::{Debt, PoolBlocks},
};
use crate::{lock::SpaceGuard, mount};
use flexvol_sdk::{Error, ErrorKind, Result};
use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// One of a driver's pools.
#[derive(Clone, Debug)]
pub struct Place {
    /// Name in the driver's configuration.
    pub name: String,
    /// Directory of the pool.
    pub path: PathBuf,
    /// Allocation of its images.
    pub allocation: Allocation,
}

/// State of a pool's images, and of those in the pools beside it.
#[derive(Debug)]
pub(crate) struct SharedSpace {
    own: PoolBlocks,
    beside: Vec<Beside>,
}

#[derive(Debug)]
struct Beside {
    name: String,
    pool: Pool,
    images: PoolBlocks,
}

impl Pool {
    /// Adds the driver's other pools; `pools` may contain this one. They are examined only when space is promised.
    #[must_use]
    pub fn among(mut self, pools: Arc<[Place]>) -> Self {
        self.driver = Some(pools);
        self
    }

    /// Opens the pool at this path if it is on this pool's file system, so that both share its space. If the path leads
    /// to another file system, whose disk may be dead, only links in the path are read there, with a timeout.
    ///
    /// # Errors
    /// When that cannot be determined.
    pub fn beside(&self, path: &Path) -> Result<Option<Pool>> {
        let ours = self.filesystem()?;
        let is_ours = match mount::holding(path, Some(ours))? {
            Some(mount) => mount.number == ours || mount::resolves_into(&mount, path, ours),
            None => false,
        };
        if !is_ours {
            return Ok(None);
        }
        // A pool that the node does not remember takes the same space.
        match Pool::open_any(path) {
            Ok(other) => Ok((other.filesystem()? == ours).then_some(other)),
            // A directory that is not a pool (yet) promises no space.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Checks that the debts of all the driver's pools that may share the file system are readable.
    ///
    /// # Errors
    /// When they are not, with the name of the unreadable pool.
    pub fn expect_readable_beside(&self) -> Result<()> {
        self.examine_beside().map(drop)
    }

    /// Examines all images here and in pools beside this one, as far as their missing blocks are promised. Takes a
    /// while.
    pub(crate) fn examine_shared_space(&self, allocation: Allocation) -> Result<SharedSpace> {
        Ok(SharedSpace {
            own: self.examine_images(allocation)?,
            beside: self.examine_beside()?,
        })
    }

    fn examine_beside(&self) -> Result<Vec<Beside>> {
        let mut found = Vec::new();
        let Some(places) = &self.driver else {
            return Ok(found);
        };
        let mut known = vec![self.directory_of_volumes()?];
        for place in &**places {
            let unread = |error: Error| unread(&place.name, error);
            let Some(pool) = self.beside(&place.path).map_err(unread)? else {
                continue;
            };
            // This pool, or one with two names.
            let volumes = pool.directory_of_volumes().map_err(unread)?;
            if known.contains(&volumes) {
                continue;
            }
            known.push(volumes);
            found.push(Beside {
                name: place.name.clone(),
                images: pool.examine_images(place.allocation).map_err(unread)?,
                pool,
            });
        }
        Ok(found)
    }

    fn directory_of_volumes(&self) -> Result<(u64, u64)> {
        let found = self.volumes.metadata();
        let found = found.map_err(|error| Error::system("examine the pool", error))?;
        Ok((found.dev(), found.ino()))
    }
}

impl SharedSpace {
    /// Locks the space of `pool`, to which this state belongs, and of the pools beside it. Held while space is counted
    /// and allocated, so that no space is promised twice.
    pub(crate) fn lock(&self, pool: &Pool) -> Result<SpaceGuard> {
        Pool::lock_all(
            [pool]
                .into_iter()
                .chain(self.beside.iter().map(|it| &it.pool)),
        )
    }

    /// Returns the state of the pool's own images.
    pub(crate) fn own(&self) -> &PoolBlocks {
        &self.own
    }

    /// Returns the current debt to all images, except for the blocks of `but`, which is about to get them.
    pub(crate) fn owed(&self, pool: &Pool, but: Option<&Image>, lock: &SpaceGuard) -> Result<Debt> {
        let own = self.own.owed(pool, but, lock)?;
        self.beside.iter().try_fold(own, |owed, other| {
            let more = other.images.owed(&other.pool, None, lock);
            let more = more.map_err(|error| unread(&other.name, error))?;
            Ok(owed.and(more))
        })
    }

    /// Returns the debt according to the recorded state.
    pub(crate) fn owed_now(&self) -> Debt {
        let beside = self.beside.iter().map(|other| other.images.owed_now(None));
        beside.fold(self.own.owed_now(None), Debt::and)
    }
}

/// Unknown debts must not count as none.
fn unread(name: &str, error: Error) -> Error {
    error.context(format_args!(
        "cannot tell what the pool {name:?} of this driver promised, which may be on the same file system"
    ))
}
