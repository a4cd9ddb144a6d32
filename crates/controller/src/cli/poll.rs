//! Work that is done one thing at a time, and waits for others in between.

use crate::client::{error_message, is_quota};
use anyhow::{Error, Result, anyhow};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often it is looked whether others have done their part.
pub(crate) const LOOK: Duration = Duration::from_millis(250);

/// How a turn of the work ended.
pub(crate) enum Turn {
    /// One thing was done.
    Done,
    /// Others have to do theirs.
    Others(String),
    /// Nothing is left to do.
    End,
}

/// Takes one turn after the other until nothing is left to do. Others may take so long for each part of
/// theirs, and what goes by itself may come again as long.
///
/// # Errors
/// What does not go by itself, or did not in time.
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
            Ok(Turn::Others(what)) if late => return Err(anyhow!("it took too long to {what}")),
            Err(error) if late || !passes(&error) => return Err(anyhow!(error_message(&error))),
            Ok(Turn::Others(_)) | Err(_) => sleep(LOOK).await,
        }
    }
}

/// Whether something goes by itself, or is another thing when it is looked at again.
fn passes(error: &Error) -> bool {
    match error.downcast_ref::<kube::Error>() {
        Some(error @ kube::Error::Api(status)) => {
            matches!(status.code, 404 | 409 | 429 | 500..) || is_quota(error)
        }
        Some(_) => true,
        None => false,
    }
}
