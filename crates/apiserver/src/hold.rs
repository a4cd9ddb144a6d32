//! Requests that wait for a test, so that others can happen meanwhile.

use tokio::sync::watch::Sender;

/// Answers no request of one name until it is dropped.
#[derive(Debug)]
#[must_use = "requests are answered again when it is dropped"]
pub struct Hold {
    held: Sender<Option<String>>,
}

impl Hold {
    pub(crate) fn of(held: &Sender<Option<String>>, request: &str) -> Self {
        held.send_replace(Some(request.to_owned()));
        Hold { held: held.clone() }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.held.send_replace(None);
    }
}

/// Waits while requests of this name are held.
pub(crate) async fn wait(held: &Sender<Option<String>>, request: &str) {
    let mut held = held.subscribe();
    // Its sender is there for as long as this.
    let _ = held.wait_for(|held| held.as_deref() != Some(request)).await;
}
