//! Fence: a process that has lost the lease writes nothing.

use crate::support::log;
use std::{
    process,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::time::Instant;

/// The time until which this process may write.
#[derive(Clone, Debug, Default)]
pub struct Fence(Arc<Mutex<Option<Instant>>>);

impl Fence {
    /// Sets the time until which writes may begin.
    pub fn set(&self, until: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }

    /// Whether the time has passed. It is checked before each write, because a process that was suspended does not
    /// notice it. A process without a fence may always write.
    pub(super) fn is_past(&self) -> bool {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() >= until)
    }
}

/// Exits the process, because another one may be the leader.
pub(crate) fn end(why: &str) -> ! {
    log::warn("this process leads no more, and ends", &[("error", why)]);
    process::exit(1)
}
