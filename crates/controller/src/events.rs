//! Telling people, by events on their objects: what is new at once, and nothing twice.

use crate::{
    api::{Refusal, refusal},
    log,
    names::checksum,
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

/// The same words about the same object are not said again for so long.
const SILENCE: Duration = Duration::from_secs(300);

/// How many objects are remembered; the rest may be told twice.
const REMEMBERED: usize = 10_000;

/// How many events may wait for the API server. More are dropped: work goes before words.
const WAITING: usize = 256;

/// Where events go.
#[derive(Debug)]
pub struct Events {
    component: &'static str,
    sender: Sender<Event>,
    said: Mutex<HashMap<u64, Instant>>,
}

/// Whether something went well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// It did.
    Normal,
    /// It did not.
    Warning,
}

impl Events {
    /// Starts the task that writes them.
    #[must_use]
    pub fn start(client: Client, component: &'static str) -> Self {
        let (sender, receiver) = channel(WAITING);
        tokio::spawn(write(client, receiver));
        Events {
            component,
            sender,
            said: Mutex::default(),
        }
    }

    /// Says something about an object, unless it was said lately.
    pub fn say<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        tone: Tone,
        reason: &str,
        message: &str,
    ) {
        let meta = object.meta();
        let uid = meta.uid.clone().unwrap_or_default();
        let sum = checksum(&format!("{uid}/{reason}/{message}"));
        if !self.is_news(sum) {
            return;
        }
        let namespace = meta.namespace.clone();
        let name = meta.name.clone().unwrap_or_default();
        let now = Time(Timestamp::now());
        let event = Event {
            metadata: ObjectMeta {
                // The same words make the same event, also after a restart.
                name: Some(format!("{name}.{sum:016x}")),
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
            type_: Some(format!("{tone:?}")),
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

    fn is_news(&self, sum: u64) -> bool {
        let now = Instant::now();
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() >= REMEMBERED {
            said.retain(|_, when| now.duration_since(*when) < SILENCE);
        }
        if said.len() >= REMEMBERED {
            said.clear();
        }
        let last = said.get(&sum);
        let news = last.is_none_or(|when| now.duration_since(*when) >= SILENCE);
        if news {
            said.insert(sum, now);
        }
        news
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
            log::warn(
                "cannot write an event",
                &[("event", &name), ("error", &error)],
            );
        }
    }
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
