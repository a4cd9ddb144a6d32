//! Requests held back by a test, so that other requests can happen first.

use tokio::sync::watch::Sender;

/// Holds back all requests of one name until dropped.
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

/// Waits while requests of this name are held back.
pub(crate) async fn wait(held: &Sender<Option<String>>, request: &str) {
    let mut held = held.subscribe();
    // The sender lives as long as `held`.
    let _ = held.wait_for(|held| held.as_deref() != Some(request)).await;
}
