//! The loop of every watch: lists all objects of a kind, and then reports each change, for ever.

use crate::{
    client::{MaybePartial, PartialObject, error_message, fields::page},
    k8s::meta::uid,
    support::{log, metrics::Metrics},
};
use futures_util::{StreamExt, pin_mut};
use kube::{
    Api, Resource,
    api::ObjectMeta,
    runtime::{
        WatchStreamExt,
        watcher::{self, watcher},
    },
};
use serde::de::DeserializeOwned;
use std::{collections::HashSet, fmt::Debug};

/// Whether an object exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It exists as reported.
    There,
    /// It was deleted. The reported object is its last state.
    Gone,
}

/// An event of a watch.
pub(crate) enum Event<K> {
    /// A list of all objects begins. Objects that were deleted since the watch broke off get no event.
    ListBegins,
    /// An object was listed or has changed.
    Object(K, Presence),
    /// Like `Object`, of one of which not all is known: it has to be read by itself.
    Part(Box<PartialObject<K>>, Presence),
    /// All objects were listed. Except after the first list, these are their UIDs: other known objects are gone.
    Listed(Option<HashSet<String>>),
}

/// Watches the selected objects for ever. The page size of lists depends on the kind.
pub(crate) async fn reflect<K>(
    api: Api<MaybePartial<K>>,
    config: watcher::Config,
    metrics: &Metrics,
    mut handle: impl FnMut(Event<K>),
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let stream = watcher(api, config.page_size(page::<K>())).default_backoff();
    pin_mut!(stream);
    let mut lists = Lists::default();
    while let Some(event) = stream.next().await {
        match event {
            Ok(watcher::Event::Init) => {
                if lists.begin() {
                    metrics.relisted(&K::plural(&()));
                }
                handle(Event::ListBegins);
            }
            Ok(watcher::Event::InitApply(object)) => {
                lists.has(object.meta());
                handle(event_of(object, Presence::There));
            }
            Ok(watcher::Event::InitDone) => handle(Event::Listed(lists.end())),
            Ok(watcher::Event::Apply(object)) => handle(event_of(object, Presence::There)),
            Ok(watcher::Event::Delete(object)) => handle(event_of(object, Presence::Gone)),
            Err(error) => {
                metrics.watch_failed(&K::plural(&()));
                let (kind, why) = (K::kind(&()), error_message(&cause(error)));
                log::warn("a watch broke off", &[("of", &kind), ("error", &why)]);
            }
        }
    }
}

/// Returns what went wrong. kube's own text repeats its cause, with all fields of the API server's answer.
fn cause(error: watcher::Error) -> anyhow::Error {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(why) => anyhow::Error::from(why).context("list"),
        WatchStartFailed(why) | WatchFailed(why) => anyhow::Error::from(why).context("watch"),
        WatchError(answer) => {
            anyhow::Error::from(kube::Error::Api(answer)).context("the API server ended the watch")
        }
        other => other.into(),
    }
}

fn event_of<K: Resource<DynamicType = ()>>(
    object: MaybePartial<K>,
    presence: Presence,
) -> Event<K> {
    match object {
        MaybePartial::Whole(object) => Event::Object(object, presence),
        MaybePartial::Part(part) => {
            let said = |text: &Option<String>| text.clone().unwrap_or_default();
            let (name, namespace) = (said(&part.metadata.name), said(&part.metadata.namespace));
            // Tenants may write any number of large objects. Who reads one by itself tells its owner.
            if presence == Presence::There && (namespace.is_empty() || part.object.is_none()) {
                log::warn(
                    "an object is too large for a watch, or lacks what is required",
                    &[
                        ("of", &K::kind(&())),
                        ("name", &name),
                        ("namespace", &namespace),
                    ],
                );
            }
            Event::Part(part, presence)
        }
    }
}

/// Consecutive lists of all objects of a kind.
#[derive(Debug, Default)]
struct Lists {
    begun: u32,
    /// UIDs of the current list, except in the first one: nothing was known before it.
    uids: HashSet<String>,
}

impl Lists {
    /// Begins another list, also if the last one broke off. Returns whether there was one before.
    fn begin(&mut self) -> bool {
        self.begun = self.begun.saturating_add(1);
        self.uids.clear();
        self.begun > 1
    }

    fn has(&mut self, meta: &ObjectMeta) {
        if self.begun > 1 {
            self.uids.insert(uid(meta).to_owned());
        }
    }

    /// Ends a list. Returns its UIDs, if objects may have been known before.
    fn end(&mut self) -> Option<HashSet<String>> {
        (self.begun > 1).then(|| std::mem::take(&mut self.uids))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::StorageNode;
    use http::{Request, Response};
    use kube::{Client, client::Body, core::Status};
    use serde_json::json;
    use std::{convert::Infallible, time::Duration};

    #[test]
    fn why_a_watch_broke_off_is_told_in_the_api_servers_own_words() {
        let busy = || Status::failure("storage is (re)initializing", "TooManyRequests");
        let refused = || kube::Error::Api(Box::new(busy().with_code(429)));
        for (error, told) in [
            (
                watcher::Error::InitialListFailed(refused()),
                "list: storage is (re)initializing",
            ),
            (
                watcher::Error::WatchStartFailed(refused()),
                "watch: storage is (re)initializing",
            ),
            (
                watcher::Error::WatchError(Box::new(busy())),
                "the API server ended the watch: storage is (re)initializing",
            ),
        ] {
            assert_eq!(error_message(&cause(error)), told);
        }
    }

    /// The API server remembers nothing of what was before a watch, so that each watch ends with another list.
    #[tokio::test(start_paused = true)]
    async fn a_watch_that_cannot_go_on_is_counted_and_so_is_the_list_after_it() {
        let forgetful = async |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            let answer = match query.contains("watch=true") {
                true => json!({"type": "ERROR", "object": {
                    "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired",
                    "message": "too old resource version", "code": 410,
                }}),
                false => json!({"items": [], "metadata": {"resourceVersion": "1"}}),
            };
            let body = Body::from(format!("{answer}\n").into_bytes());
            Ok::<_, Infallible>(Response::new(body))
        };
        let client = Client::new(tower::service_fn(forgetful), "default");
        let metrics = Metrics::default();
        let mut lists = 0;
        let handle = |event| {
            if let Event::<StorageNode>::Listed(_) = event {
                lists += 1;
            }
        };
        let config = watcher::Config::default();
        let watch = reflect(Api::all(client), config, &metrics, handle);
        let ended = tokio::time::timeout(Duration::from_secs(20), watch).await;
        assert!(ended.is_err(), "a watch goes on for ever");
        let text = metrics.text();
        let counted = |name: &str| {
            let line = format!("flexvol_watch_{name}_total{{resource=\"storagenodes\"}} ");
            let count = text.lines().find_map(|found| found.strip_prefix(&line));
            count.map_or(0, |count| count.parse::<u32>().unwrap())
        };
        assert!(lists > 1, "{lists} lists");
        assert_eq!(counted("relists"), lists - 1, "{text}");
        assert!(counted("errors") >= counted("relists"), "{text}");
    }

    #[test]
    fn what_was_in_a_list_that_broke_off_and_is_not_in_the_next_one_has_gone() {
        let meta = |uid: &str| ObjectMeta {
            uid: Some(uid.to_owned()),
            ..ObjectMeta::default()
        };
        let mut lists = Lists::default();
        assert!(!lists.begin(), "the first list");
        lists.has(&meta("1"));
        assert_eq!(lists.end(), None, "nothing was known before");
        let mut lists = Lists::default();
        lists.begin();
        lists.has(&meta("1"));
        assert!(lists.begin());
        lists.has(&meta("2"));
        assert_eq!(lists.end(), Some(HashSet::from(["2".to_owned()])));
        lists.begin();
        assert_eq!(lists.end(), Some(HashSet::new()));
    }
}
