//! Event recorder: new events at once, no duplicates, and a limited rate.

mod recent;
mod waiting;

use crate::{
    api::well_known::checksum,
    client::{Refusal, error_message, refusal},
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
use recent::RecentEvents;
use serde_json::json;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;
use waiting::{Pending, Waiting};

/// Maximum length of the object's name in an event's: names have 253 characters, the dot and the checksum take 17.
const LONGEST_HEAD: usize = 253 - 17;

/// Records events about objects.
#[derive(Debug)]
pub struct EventRecorder {
    component: &'static str,
    waiting: Arc<Waiting>,
    recorded: Arc<Mutex<RecentEvents>>,
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
        let (waiting, recorded) = (Arc::default(), Arc::default());
        tokio::spawn(write(client, Arc::clone(&waiting), Arc::clone(&recorded)));
        EventRecorder {
            component,
            waiting,
            recorded,
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
        let warned = (event_type == EventType::Warning).then(|| checksum(&uid));
        let too_many = warned.is_some_and(|object| !recorded.may_warn(object, now));
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
        let pending = Pending {
            event,
            words: sum,
            warned,
        };
        if let Some(dropped) = self.waiting.push(pending) {
            let (of, reason, said) = in_words(&dropped.event);
            log::warn(
                "an event is dropped",
                &[("of", &of), ("reason", reason), ("event", said)],
            );
            forget(&self.recorded, &dropped);
        }
    }
}

/// Returns the name of an event: the object's name, truncated if it is too long, and a checksum.
fn event_name(object: &str, sum: u64) -> String {
    let head: String = object.chars().take(LONGEST_HEAD).collect();
    format!("{}.{sum:016x}", head.trim_end_matches(['.', '-']))
}

/// Forgets an event that was not written.
fn forget(recorded: &Mutex<RecentEvents>, pending: &Pending) {
    let mut recorded = recorded.lock().unwrap_or_else(PoisonError::into_inner);
    recorded.forget(pending.words, pending.warned);
}

async fn write(client: Client, waiting: Arc<Waiting>, recorded: Arc<Mutex<RecentEvents>>) {
    loop {
        let pending = waiting.next().await;
        let event = &pending.event;
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let name = event.metadata.name.clone().unwrap_or_default();
        let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let written = match events.create(&PostParams::default(), event).await {
            Err(error) if refusal(&error) == Refusal::Changed => again(&events, &name, event).await,
            written => written.map(drop),
        };
        if let Err(error) = written {
            let error = error_message(&error.into());
            let (of, reason, said) = in_words(event);
            log::warn(
                "cannot write an event",
                &[
                    ("of", &of),
                    ("reason", reason),
                    ("event", said),
                    ("error", &error),
                ],
            );
            forget(&recorded, &pending);
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
    let count = events.get(name).await?.count.unwrap_or(1).saturating_add(1);
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
}
