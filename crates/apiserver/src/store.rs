//! The objects, and how they have changed.

pub(crate) mod write;

use crate::{KINDS, Kind, Refused};
use serde_json::Value;
use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::Arc,
};
use tokio::sync::watch;

/// Which object; in the order in which lists have them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    kind: usize,
    /// Empty if the kind has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// The key of an object of this kind, such as `PersistentVolume`.
    ///
    /// # Panics
    /// When the kind is not known.
    #[must_use]
    pub fn new(kind: &str, namespace: &str, name: &str) -> Self {
        let kind = KINDS.iter().position(|known| known.kind == kind);
        Key {
            kind: kind.expect("a kind that is known"),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> &'static Kind {
        &KINDS[self.kind]
    }
}

/// One change, as watches tell it.
#[derive(Clone, Debug)]
pub struct Change {
    /// The version that it made.
    pub version: u64,
    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub what: &'static str,
    /// Of which object.
    pub key: Key,
    /// The object after it; of a deleted one its last state.
    pub text: Arc<str>,
}

/// How many changes are kept for watches that begin later.
const HISTORY: usize = 50_000;

/// A new cluster has this version.
const FIRST: u64 = 1000;

/// The objects of a cluster.
#[derive(Debug)]
pub struct Store {
    objects: BTreeMap<Key, Arc<str>>,
    history: VecDeque<Change>,
    /// Watches from before this are told that they are too late.
    oldest: u64,
    version: watch::Sender<u64>,
    uids: u64,
}

impl Default for Store {
    fn default() -> Self {
        Store {
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            oldest: FIRST,
            version: watch::Sender::new(FIRST),
            uids: 0,
        }
    }
}

impl Store {
    /// The version of the last change.
    #[must_use]
    pub fn version(&self) -> u64 {
        *self.version.borrow()
    }

    /// Says whenever there is another version.
    pub(crate) fn versions(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// One object.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Value> {
        self.objects.get(key).map(|text| parse(text))
    }

    /// One object as it is written.
    pub(crate) fn text(&self, key: &Key) -> Option<Arc<str>> {
        self.objects.get(key).cloned()
    }

    /// The objects of a kind, in a namespace or in all, from after this one on.
    pub(crate) fn texts<'a>(
        &'a self,
        kind: &Kind,
        namespace: Option<&'a str>,
        after: Option<&Key>,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<str>)> {
        let first = Key::new(kind.kind, namespace.unwrap_or_default(), "");
        let number = first.kind;
        let from = after.map_or(Bound::Included(&first), Bound::Excluded);
        self.objects
            .range((from, Bound::Unbounded))
            .take_while(move |(key, _)| {
                key.kind == number && namespace.is_none_or(|name| key.namespace == name)
            })
    }

    /// All objects of a kind.
    #[must_use]
    pub fn all(&self, kind: &str) -> Vec<Value> {
        let kind = Key::new(kind, "", "").kind();
        let texts = self.texts(kind, None, None);
        texts.map(|(_, text)| parse(text)).collect()
    }

    /// How many objects of a kind there are.
    #[must_use]
    pub fn count(&self, kind: &str) -> usize {
        self.texts(Key::new(kind, "", "").kind(), None, None)
            .count()
    }

    /// What has changed after this version.
    ///
    /// # Errors
    /// When that is not known any more.
    pub fn since(&self, version: u64) -> Result<impl Iterator<Item = &Change>, Refused> {
        if version < self.oldest {
            return Err(Refused::expired(version, self.oldest));
        }
        let first = self
            .history
            .partition_point(|change| change.version <= version);
        Ok(self.history.range(first..))
    }

    /// Forgets all changes: who has not seen them is told that it is too late.
    pub fn compact(&mut self) {
        self.history.clear();
        // Somebody writes elsewhere in the meantime, as in every cluster.
        self.version.send_modify(|version| *version += 1);
        self.oldest = self.version();
    }

    fn put(&mut self, key: &Key, mut object: Value, what: &'static str) -> Value {
        let version = self.version() + 1;
        let kind = key.kind();
        object["metadata"]["resourceVersion"] = version.to_string().into();
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.kind.into();
        let text: Arc<str> = object.to_string().into();
        if what == "DELETED" {
            self.objects.remove(key);
        } else {
            self.objects.insert(key.clone(), Arc::clone(&text));
        }
        if self.history.len() == HISTORY
            && let Some(first) = self.history.pop_front()
        {
            self.oldest = first.version;
        }
        self.history.push_back(Change {
            version,
            what,
            key: key.clone(),
            text,
        });
        self.version.send_replace(version);
        object
    }
}

/// An object from its text, which the store wrote itself.
pub(crate) fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("the store's own text")
}
