//! Pools: the places in which volumes are stored.

use crate::{backend::Backend, settings::Policy};
use flexvol_host::{
    responsive,
    worker::{self, Access},
};
use flexvol_sdk::{Error, ErrorKind, Result};
use std::{
    cell::OnceCell,
    fmt,
    path::{Path, PathBuf},
};

/// A pool: a name in the configuration, a policy, and how to open it.
pub struct Pool<B> {
    name: String,
    policy: Policy,
    place: Option<PathBuf>,
    open: Box<dyn Fn() -> Result<B>>,
}

impl<B> Pool<B> {
    /// Makes a pool. `open` is called only when a callout needs it.
    pub fn new(
        name: impl Into<String>,
        policy: Policy,
        open: impl Fn() -> Result<B> + 'static,
    ) -> Self {
        Pool {
            name: name.into(),
            policy,
            place: None,
            open: Box::new(open),
        }
    }

    /// Names the directory that the pool is in, or that its devices are in. While a process that an earlier command left
    /// in a pool there still waits for the kernel, commands do not wait there, too.
    #[must_use]
    pub fn at(mut self, place: impl Into<PathBuf>) -> Self {
        self.place = Some(place.into());
        self
    }

    pub(crate) fn maybe_at(mut self, place: Option<PathBuf>) -> Self {
        self.place = place;
        self
    }

    /// Returns the pool's name in the configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn place(&self) -> Option<&Path> {
        self.place.as_deref()
    }

    /// Opens the pool, to look into it.
    pub(crate) fn open(&self) -> Result<B> {
        worker::at(&self.name, self.place(), Access::Read)?;
        (self.open)()
    }

    /// Opens the pool, to change something there until it or another one is opened again.
    pub(crate) fn open_to_change(&self) -> Result<B> {
        let opened = self.open()?;
        worker::at(&self.name, self.place(), Access::Write)?;
        Ok(opened)
    }
}

impl<B: Backend + 'static> Pool<B> {
    /// Returns the same pool, which now fails to open if it does not answer. A callout uses one pool and is
    /// watched by another process. Commands open all pools, and a dead one must not hide the others.
    #[must_use]
    pub(crate) fn unless_silent(self) -> Self {
        let Pool {
            name,
            policy,
            place,
            open,
        } = self;
        let answers = OnceCell::new();
        let same = place.clone();
        let pool = Pool::new(name, policy, move || {
            let look = || {
                let _ = open().and_then(|backend| backend.catalog().volume_ids());
            };
            // Without a second process it is unknown whether the pool answers, so try it.
            let asked = || responsive::completes_in_child(place.as_deref(), &look).unwrap_or(true);
            match answers.get_or_init(asked) {
                true => open(),
                false => Err(Error::new(
                    ErrorKind::TimedOut,
                    "the pool does not answer: its disk or its server is silent; look into the kernel's log on the node",
                )),
            }
        });
        pool.maybe_at(same)
    }
}

impl<B> fmt::Debug for Pool<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
