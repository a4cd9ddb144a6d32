//! Events that wait for the API server. Namespaces take turns, and none that has many displaces those of another.

use k8s_openapi::api::core::v1::Event;
use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

/// Number of events that may wait. Beyond it some are dropped, so that events never delay work.
const MOST: usize = 1024;

/// An event, and what its recorder remembers of it.
#[derive(Debug)]
pub(super) struct Pending {
    pub event: Event,
    /// Checksum of its object, reason and message.
    pub words: u64,
    /// Checksum of its object, if it is a warning.
    pub warned: Option<u64>,
}

/// The events of all namespaces.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    queues: Mutex<Queues>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Queues {
    by_namespace: BTreeMap<String, VecDeque<Pending>>,
    count: usize,
    /// The namespace that had its turn last.
    last: String,
}

impl Waiting {
    /// Adds an event. Returns one that is dropped, if too many wait: the newest of the namespace that has most.
    pub fn push(&self, pending: Pending) -> Option<Pending> {
        let dropped = self.queues().push(pending);
        self.news.notify_one();
        dropped
    }

    /// Waits for an event, and takes it.
    pub async fn next(&self) -> Pending {
        loop {
            let next = self.queues().take();
            match next {
                Some(pending) => return pending,
                None => self.news.notified().await,
            }
        }
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queues {
    fn push(&mut self, pending: Pending) -> Option<Pending> {
        let namespace = pending.event.metadata.namespace.clone().unwrap_or_default();
        let queue = self.by_namespace.entry(namespace).or_default();
        queue.push_back(pending);
        self.count += 1;
        if self.count <= MOST {
            return None;
        }
        let longest = self
            .by_namespace
            .values_mut()
            .max_by_key(|queue| queue.len())?;
        self.count -= 1;
        longest.pop_back()
    }

    fn take(&mut self) -> Option<Pending> {
        let after = (Bound::Excluded(self.last.clone()), Bound::Unbounded);
        let mut next = self.by_namespace.range(after).map(|(name, _)| name);
        let namespace = next
            .next()
            .or_else(|| self.by_namespace.keys().next())?
            .clone();
        let queue = self.by_namespace.get_mut(&namespace)?;
        let pending = queue.pop_front();
        if queue.is_empty() {
            self.by_namespace.remove(&namespace);
        }
        self.count -= usize::from(pending.is_some());
        self.last = namespace;
        pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    fn event(namespace: &str, words: u64) -> Pending {
        let metadata = ObjectMeta {
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        };
        Pending {
            event: Event {
                metadata,
                ..Event::default()
            },
            words,
            warned: None,
        }
    }

    #[test]
    fn namespaces_take_turns_and_each_keeps_its_order() {
        let mut queues = Queues::default();
        for (namespace, words) in [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)] {
            assert!(queues.push(event(namespace, words)).is_none());
        }
        let order = std::iter::from_fn(|| queues.take().map(|pending| pending.words));
        assert_eq!(order.collect::<Vec<_>>(), [1, 4, 5, 2, 6, 3]);
        assert_eq!((queues.count, queues.by_namespace.len()), (0, 0));
    }

    #[test]
    fn of_too_many_events_those_are_dropped_whose_namespace_has_most() {
        let mut queues = Queues::default();
        let mut dropped = 0;
        for words in 0..3000 {
            dropped += usize::from(queues.push(event("many", words)).is_some());
        }
        assert_eq!(dropped, 3000 - MOST);
        for number in 0..20 {
            let lost = queues.push(event(&format!("few{number}"), 0)).unwrap();
            assert_eq!(lost.event.metadata.namespace.as_deref(), Some("many"));
        }
        let first: Vec<_> = (0..21).filter_map(|_| queues.take()).collect();
        let few = first.iter().filter(|pending| pending.words == 0).count();
        assert!(few >= 20, "{few}");
    }
}
