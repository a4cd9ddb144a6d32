//! Runs work step by step, and polls while other components have to act.

use crate::client::{error_message, is_quota};
use anyhow::{Error, Result, anyhow};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Polling interval.
pub(crate) const LOOK: Duration = Duration::from_millis(250);

/// The result of one turn.
pub(crate) enum Turn {
    /// One step was done.
    Done,
    /// Another component has to act, as described.
    Waiting(String),
    /// Nothing is left to do.
    End,
}

/// Takes turns until nothing is left to do. `patience` is the timeout for each action of another component, and for
/// transient errors.
///
/// # Errors
/// A permanent error, or the timeout.
pub(crate) async fn finish(
    patience: Duration,
    mut turn: impl AsyncFnMut() -> Result<Turn>,
) -> Result<()> {
    let mut begun = Instant::now();
    loop {
        let late = begun.elapsed() >= patience;
        match turn().await {
            Ok(Turn::End) => return Ok(()),
            Ok(Turn::Done) => begun = Instant::now(),
            Ok(Turn::Waiting(what)) if late => return Err(anyhow!("it took too long to {what}")),
            Err(error) if late || !is_transient(&error) => {
                return Err(anyhow!(error_message(&error)));
            }
            Ok(Turn::Waiting(_)) | Err(_) => sleep(LOOK).await,
        }
    }
}

/// Whether an error is transient, or may be gone after the next read.
fn is_transient(error: &Error) -> bool {
    match error.downcast_ref::<kube::Error>() {
        Some(error @ kube::Error::Api(status)) => {
            matches!(status.code, 404 | 409 | 429 | 500..) || is_quota(error)
        }
        Some(_) => true,
        None => false,
    }
}
