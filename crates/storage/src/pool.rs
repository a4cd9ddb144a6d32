//! The places volumes are carved from.

use crate::settings::Policy;
use flexvol_sdk::Result;
use std::fmt;

/// One place volumes are carved from: a name in the configuration, a policy, and how to open it.
pub struct Pool<B> {
    name: String,
    policy: Policy,
    open: Box<dyn Fn() -> Result<B>>,
}

impl<B> Pool<B> {
    /// A pool; `open` is called when a callout needs it and not before.
    pub fn new(
        name: impl Into<String>,
        policy: Policy,
        open: impl Fn() -> Result<B> + 'static,
    ) -> Self {
        Pool {
            name: name.into(),
            policy,
            open: Box::new(open),
        }
    }

    /// Its name in the configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn open(&self) -> Result<B> {
        (self.open)()
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
