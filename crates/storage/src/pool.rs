//! Pools: the places in which volumes are stored.

use crate::{backend::Backend, settings::Policy};
use flexvol_host::{responsive, worker};
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
    directory: Option<PathBuf>,
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
            directory: None,
            open: Box::new(open),
        }
    }

    /// Names the directory that the pool is in.
    #[must_use]
    pub fn at(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    pub(crate) fn maybe_at(mut self, directory: Option<PathBuf>) -> Self {
        self.directory = directory;
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

    pub(crate) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    pub(crate) fn open(&self) -> Result<B> {
        worker::at(&self.name, self.directory())?;
        (self.open)()
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
            directory,
            open,
        } = self;
        let answers = OnceCell::new();
        let same = directory.clone();
        let pool = Pool::new(name, policy, move || {
            let look = || {
                let _ = open().and_then(|backend| backend.catalog().volume_ids());
            };
            // Without a second process it is unknown whether the pool answers, so try it.
            let asked =
                || responsive::completes_in_child(directory.as_deref(), &look).unwrap_or(true);
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
