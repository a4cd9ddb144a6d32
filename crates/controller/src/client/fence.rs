//! A process that is not the leader any more writes nothing.

use crate::support::log;
use std::{
    process,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::time::Instant;

/// Until when this process may write.
#[derive(Clone, Debug, Default)]
pub struct Fence(Arc<Mutex<Option<Instant>>>);

impl Fence {
    /// From now on writes may begin until then.
    pub fn set(&self, until: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }

    /// A process that was stopped does not know it: time is looked at before each write. One that
    /// was never fenced may always write.
    pub(super) fn is_past(&self) -> bool {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() >= until)
    }
}

/// Ends this process: another may lead.
pub(crate) fn end(why: &str) -> ! {
    log::warn("this process leads no more, and ends", &[("why", why)]);
    process::exit(1)
}
