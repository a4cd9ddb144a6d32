//! Watches: streams of changes.

use crate::{Refused, request::ApiRequest, shared::Shared, store::parse};
use bytes::Bytes;
use futures_util::{Stream, stream::unfold};
use hyper::body::Frame;
use serde_json::{Value, json};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{
    sync::watch::Receiver,
    time::{Instant, sleep_until},
};

/// Interval of bookmarks on an idle watch.
const BOOKMARKS: Duration = Duration::from_secs(1);

struct Watch {
    shared: Arc<Shared>,
    request: ApiRequest,
    since: u64,
    versions: Receiver<u64>,
    cuts: Receiver<u64>,
    ends: Instant,
    ended: bool,
}

/// Returns the body of the answer to a watch request.
pub(crate) fn watch(
    shared: Arc<Shared>,
    request: ApiRequest,
) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
    let (versions, now) = {
        let store = shared.store();
        (store.versions(), store.version())
    };
    let mut cuts = shared.cuts();
    cuts.mark_unchanged();
    let seconds = request.seconds.unwrap_or(300);
    let start = Watch {
        since: request.version.unwrap_or(now),
        versions,
        cuts,
        ends: Instant::now() + Duration::from_secs(seconds),
        ended: false,
        shared,
        request,
    };
    unfold(start, |mut watch| async {
        let text = watch.next().await?;
        Some((Ok(Frame::data(Bytes::from(text))), watch))
    })
}

impl Watch {
    async fn next(&mut self) -> Option<String> {
        loop {
            if self.ended {
                return None;
            }
            match self.news() {
                Err(refused) => {
                    self.ended = true;
                    return Some(line("ERROR", &refused.status().to_string()));
                }
                Ok(text) if !text.is_empty() => return Some(text),
                Ok(_) => {}
            }
            tokio::select! {
                changed = self.versions.changed() => changed.ok()?,
                _ = self.cuts.changed() => return None,
                () = sleep_until(self.ends) => return None,
                () = sleep_until(Instant::now() + BOOKMARKS), if self.request.bookmarks => {
                    let kind = self.request.kind;
                    let object = json!({
                        "kind": kind.kind,
                        "apiVersion": kind.api_version(),
                        "metadata": {"resourceVersion": self.since.to_string()},
                    });
                    return Some(line("BOOKMARK", &object.to_string()));
                }
            }
        }
    }

    /// Returns the events since the last call.
    fn news(&mut self) -> Result<String, Refused> {
        let store = self.shared.store();
        let mut text = String::new();
        for change in store.since(self.since)? {
            let key = &change.key;
            let of_this = key.kind() == self.request.kind
                && (self.request.namespace.as_ref()).is_none_or(|name| *name == key.namespace);
            if of_this && is_chosen(&self.request, &change.text) {
                text += &line(change.what, &change.text);
            }
        }
        self.since = store.version();
        Ok(text)
    }
}

fn line(what: &str, object: &str) -> String {
    format!("{{\"type\":\"{what}\",\"object\":{object}}}\n")
}

/// Whether the object has the requested label. Labels do not change here.
pub(crate) fn is_chosen(request: &ApiRequest, text: &str) -> bool {
    let Some((key, value)) = &request.label else {
        return true;
    };
    let object: Value = parse(text);
    let label = &object["metadata"]["labels"][key];
    value
        .as_ref()
        .map_or(!label.is_null(), |value| *label == **value)
}
