//! Event recorder: new events at once, no duplicates, and a limited rate.

use crate::{
    api::well_known::checksum,
    client::{Refusal, refusal},
    support::log,
};
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::json;
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    time::Instant,
};

/// Period in which an identical event of the same object is not repeated.
const SILENCE: Duration = Duration::from_secs(300);

/// Number of warnings that an object may get at once; one more is allowed after each [`ONE_MORE`]. Kubernetes' own
/// components have these limits (`defaultSpamBurst`, `defaultSpamQPS` in client-go's `tools/record/events_cache.go`).
/// They hold back messages that always differ, such as a driver's with the time in them. Normal events are not limited.
const BURST: u32 = 25;
const ONE_MORE: Duration = Duration::from_secs(300);

/// Number of remembered entries. When it is exceeded, events may be recorded twice.
const REMEMBERED: usize = 10_000;

/// Number of events that may wait for the API server. More are dropped, so that events never delay work.
const WAITING: usize = 256;

/// Maximum length of the object's name in an event's: names have 253 characters, the dot and the checksum take 17.
const LONGEST_HEAD: usize = 253 - 17;

/// Records events about objects.
#[derive(Debug)]
pub struct EventRecorder {
    component: &'static str,
    sender: Sender<Event>,
    recorded: Mutex<RecentEvents>,
}

/// Recently recorded events.
#[derive(Debug, Default)]
struct RecentEvents {
    /// When an event, by the checksum of object, reason and message, was last recorded.
    words: HashMap<u64, Instant>,
    /// When an object's allowance of warnings is full again, at one in [`ONE_MORE`].
    objects: HashMap<u64, Instant>,
}

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// Something succeeded.
    Normal,
    /// Something failed.
    Warning,
}

impl EventRecorder {
    /// Starts the task that writes events.
    #[must_use]
    pub fn start(client: Client, component: &'static str) -> Self {
        let (sender, receiver) = channel(WAITING);
        tokio::spawn(write(client, receiver));
        EventRecorder {
            component,
            sender,
            recorded: Mutex::default(),
        }
    }

    /// Records an event about an object, unless the same one was recorded recently.
    pub fn record<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        event_type: EventType,
        reason: &str,
        message: &str,
    ) {
        let meta = object.meta();
        let uid = meta.uid.clone().unwrap_or_default();
        let sum = checksum(&format!("{uid}/{reason}/{message}"));
        let now = Instant::now();
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        if !recorded.is_news(sum, now) {
            return;
        }
        let too_many = event_type == EventType::Warning && !recorded.may_warn(checksum(&uid), now);
        drop(recorded);
        if too_many {
            let of = meta.name.as_deref().unwrap_or_default();
            log::warn(
                "an event is held back: its object had too many",
                &[("of", of), ("reason", reason), ("event", message)],
            );
            return;
        }
        let namespace = meta.namespace.clone();
        let name = meta.name.clone().unwrap_or_default();
        let now = Time(Timestamp::now());
        let event = Event {
            metadata: ObjectMeta {
                // The same event has the same name, also after a restart.
                name: Some(event_name(&name, sum)),
                namespace: Some(namespace.clone().unwrap_or_else(|| "default".to_owned())),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some(K::api_version(&()).into_owned()),
                kind: Some(K::kind(&()).into_owned()),
                name: Some(name),
                namespace,
                uid: Some(uid),
                resource_version: meta.resource_version.clone(),
                field_path: None,
            },
            reason: Some(reason.to_owned()),
            message: Some(message.chars().take(1000).collect()),
            type_: Some(format!("{event_type:?}")),
            count: Some(1),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            source: Some(EventSource {
                component: Some(self.component.to_owned()),
                host: None,
            }),
            ..Event::default()
        };
        if self.sender.try_send(event).is_err() {
            log::warn(
                "an event is dropped",
                &[("reason", reason), ("event", message)],
            );
        }
    }
}

impl RecentEvents {
    /// Whether an event was not recorded recently.
    fn is_news(&mut self, words: u64, now: Instant) -> bool {
        forget(&mut self.words, |said| now.duration_since(said) >= SILENCE);
        let last = self.words.get(&words);
        let news = last.is_none_or(|said| now.duration_since(*said) >= SILENCE);
        if news {
            self.words.insert(words, now);
        }
        news
    }

    /// Whether an object may get another warning.
    fn may_warn(&mut self, object: u64, now: Instant) -> bool {
        forget(&mut self.objects, |made_up| made_up <= now);
        let made_up = self.objects.entry(object).or_insert(now);
        let next = (*made_up).max(now) + ONE_MORE;
        let may = next.duration_since(now) <= ONE_MORE * BURST;
        if may {
            *made_up = next;
        }
        may
    }
}

/// Returns the name of an event: the object's name, truncated if it is too long, and a checksum.
fn event_name(object: &str, sum: u64) -> String {
    let head: String = object.chars().take(LONGEST_HEAD).collect();
    format!("{}.{sum:016x}", head.trim_end_matches(['.', '-']))
}

/// Makes room if the map is full: drops useless entries, or else all entries.
fn forget(all: &mut HashMap<u64, Instant>, useless: impl Fn(Instant) -> bool) {
    if all.len() >= REMEMBERED {
        all.retain(|_, when| !useless(*when));
    }
    if all.len() >= REMEMBERED {
        all.clear();
    }
}

async fn write(client: Client, mut receiver: Receiver<Event>) {
    while let Some(event) = receiver.recv().await {
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let name = event.metadata.name.clone().unwrap_or_default();
        let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let written = match events.create(&PostParams::default(), &event).await {
            Err(error) if refusal(&error) == Refusal::Changed => {
                again(&events, &name, &event).await
            }
            written => written.map(drop),
        };
        if let Err(error) = written {
            let error = error.to_string();
            let (of, reason, said) = in_words(&event);
            log::warn(
                "cannot write an event",
                &[
                    ("of", &of),
                    ("reason", reason),
                    ("event", said),
                    ("error", &error),
                ],
            );
        }
    }
}

/// Returns an event's object, reason and message, for the log if the event cannot be written.
fn in_words(event: &Event) -> (String, &str, &str) {
    let of = &event.involved_object;
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    let place = match &of.namespace {
        Some(namespace) => format!("{namespace}/{}", part(&of.name)),
        None => part(&of.name),
    };
    let reason = event.reason.as_deref().unwrap_or_default();
    let said = event.message.as_deref().unwrap_or_default();
    (format!("{} {place}", part(&of.kind)), reason, said)
}

async fn again(events: &Api<Event>, name: &str, event: &Event) -> kube::Result<()> {
    let count = events.get(name).await?.count.unwrap_or(1) + 1;
    let patch = json!({"count": count, "lastTimestamp": event.last_timestamp});
    let patch = Patch::Merge(&patch);
    events
        .patch(name, &PatchParams::default(), &patch)
        .await
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::well_known::is_object_name;

    #[test]
    fn what_is_new_is_said_and_not_again_for_a_while() {
        let (mut recorded, now) = (RecentEvents::default(), Instant::now());
        assert!(recorded.is_news(1, now));
        assert!(!recorded.is_news(1, now + SILENCE / 2));
        assert!(recorded.is_news(2, now + SILENCE / 2));
        assert!(recorded.is_news(1, now + SILENCE));
    }

    #[test]
    fn an_object_that_is_warned_of_again_and_again_has_some_events_and_no_flood() {
        let (mut recorded, now) = (RecentEvents::default(), Instant::now());
        let mut warn = |object: u64, after: Duration| recorded.may_warn(object, now + after);
        for _ in 0..BURST {
            assert!(warn(1, Duration::ZERO));
        }
        assert!(!warn(1, Duration::ZERO));
        assert!(warn(2, Duration::ZERO), "another object has its own");
        assert!(!warn(1, ONE_MORE / 2));
        assert!(warn(1, ONE_MORE));
        assert!(!warn(1, ONE_MORE));
        let later = (0..BURST + 5).filter(|_| warn(1, ONE_MORE * (BURST + 1)));
        assert_eq!(later.count(), BURST as usize);
    }

    #[test]
    fn an_event_that_cannot_be_made_is_in_the_log_with_what_it_is_about() {
        let event = Event {
            involved_object: ObjectReference {
                kind: Some("PersistentVolumeClaim".to_owned()),
                namespace: Some("ns".to_owned()),
                name: Some("data".to_owned()),
                ..ObjectReference::default()
            },
            reason: Some("ProvisioningFailed".to_owned()),
            message: Some("node a is away".to_owned()),
            ..Event::default()
        };
        let claim = "PersistentVolumeClaim ns/data".to_owned();
        assert_eq!(
            in_words(&event),
            (claim, "ProvisioningFailed", "node a is away")
        );
    }

    #[test]
    fn an_event_of_an_object_with_a_long_name_has_a_name_that_can_be() {
        assert_eq!(event_name("data", 1), "data.0000000000000001");
        for long in ["n".repeat(253), format!("{}.b", "n".repeat(235))] {
            let name = event_name(&long, u64::MAX);
            assert!(is_object_name(&name), "{name}");
            assert!(!name.contains(".."), "{name}");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut recorded, now) = (RecentEvents::default(), Instant::now());
        for sum in 0..u64::try_from(REMEMBERED).unwrap() * 3 {
            assert!(recorded.is_news(sum, now) && recorded.may_warn(sum, now));
        }
        assert!(recorded.words.len() <= REMEMBERED && recorded.objects.len() <= REMEMBERED);
    }
}
