//! Pools of one driver on one file system, which give away the same space: what one of them owes to its images is
//! promised by none of the others.

use super::{
    Allocation, Image, Pool,
    lacking::{Look, Owed},
};
use crate::{lock::SpaceGuard, mount};
use flexvol_sdk::{Error, ErrorKind, Result};
use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// One of the pools of a driver.
#[derive(Clone, Debug)]
pub struct Place {
    /// What the driver calls it.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// How its images get their blocks.
    pub allocation: Allocation,
}

/// What the images of a pool have, and those of the pools beside it.
#[derive(Debug)]
pub(crate) struct Around {
    own: Look,
    beside: Vec<Beside>,
}

#[derive(Debug)]
struct Beside {
    name: String,
    pool: Pool,
    look: Look,
}

impl Pool {
    /// The same, as one of the pools of a driver: it may be among `pools` itself. They are looked at when something is
    /// promised, and not before.
    #[must_use]
    pub fn among(mut self, pools: Arc<[Place]>) -> Self {
        self.driver = Some(pools);
        self
    }

    /// What is at this path, if it is a pool on the file system of this one: then both give away the
    /// same space. Another file system that the path comes to, whose disk may be dead, is asked for nothing but the links
    /// in the path, and is not waited for.
    ///
    /// # Errors
    /// When that cannot be known.
    pub fn beside(&self, path: &Path) -> Result<Option<Pool>> {
        let ours = self.filesystem()?;
        let is_ours = match mount::holding(path, ours)? {
            Some(mount) => mount.number == ours || mount::leads_to(&mount, path, ours),
            None => false,
        };
        if !is_ours {
            return Ok(None);
        }
        // One that took the place of another gives the same space away.
        match Pool::open_any(path) {
            Ok(other) => Ok((other.filesystem()? == ours).then_some(other)),
            // What is no pool, or not one yet, gives nothing away.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// That what all pools of the driver owe that may be on the same file system can be known.
    ///
    /// # Errors
    /// When it cannot, with the name of the pool that cannot be read.
    pub fn expect_readable_beside(&self) -> Result<()> {
        self.look_beside().map(drop)
    }

    /// Looks at all images here and beside it, if these are promised what they lack. It takes a while.
    pub(crate) fn look_around(&self, allocation: Allocation) -> Result<Around> {
        Ok(Around {
            own: self.look(allocation)?,
            beside: self.look_beside()?,
        })
    }

    fn look_beside(&self) -> Result<Vec<Beside>> {
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
            // This one, or one that has two names.
            let volumes = pool.directory_of_volumes().map_err(unread)?;
            if known.contains(&volumes) {
                continue;
            }
            known.push(volumes);
            found.push(Beside {
                name: place.name.clone(),
                look: pool.look(place.allocation).map_err(unread)?,
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

impl Around {
    /// Held while space is counted and taken, so that it cannot be promised twice, neither by `pool`, of which this was
    /// seen, nor by one beside it.
    pub(crate) fn lock(&self, pool: &Pool) -> Result<SpaceGuard> {
        Pool::lock_all(
            [pool]
                .into_iter()
                .chain(self.beside.iter().map(|it| &it.pool)),
        )
    }

    /// What is owed to all images, as they are now, but for the blocks of the one that is about to get them.
    pub(crate) fn owed(&self, pool: &Pool, but: Option<&Image>, lock: &SpaceGuard) -> Result<Owed> {
        let own = self.own.owed(pool, but, lock)?;
        self.beside.iter().try_fold(own, |owed, other| {
            let more = other.look.owed(&other.pool, None, lock);
            let more = more.map_err(|error| unread(&other.name, error))?;
            Ok(owed.and(more))
        })
    }

    /// The same as it was seen.
    pub(crate) fn owed_now(&self) -> Owed {
        let beside = self.beside.iter().map(|other| other.look.owed_now(None));
        beside.fold(self.own.owed_now(None), Owed::and)
    }
}

/// What is not known is not nothing.
fn unread(name: &str, error: Error) -> Error {
    error.context(format_args!(
        "cannot tell what the pool {name:?} of this driver promised, which may be on the same file system"
    ))
}
