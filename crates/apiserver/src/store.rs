//! The objects and their history.

pub(crate) mod write;

use crate::{KINDS, Kind, Refused};
use serde_json::Value;
use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::Arc,
};
use tokio::sync::watch;

/// Identifies an object. Ordered as lists are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    kind: usize,
    /// Empty for a cluster-scoped kind.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

impl Key {
    /// Returns the key of an object of this kind, such as `PersistentVolume`.
    ///
    /// # Panics
    /// When the kind is not supported.
    #[must_use]
    pub fn new(kind: &str, namespace: &str, name: &str) -> Self {
        let kind = KINDS.iter().position(|known| known.kind == kind);
        Key {
            kind: kind.expect("a kind that is known"),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Returns the object's kind.
    #[must_use]
    pub fn kind(&self) -> &'static Kind {
        &KINDS[self.kind]
    }
}

/// One change, as in a watch event.
#[derive(Clone, Debug)]
pub struct Change {
    /// Resource version of the change.
    pub version: u64,
    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub what: &'static str,
    /// Key of the object.
    pub key: Key,
    /// JSON of the object after the change; for a deleted object, its last state.
    pub text: Arc<str>,
}

/// Number of changes kept for watches that begin later.
const HISTORY: usize = 50_000;

/// Resource version of a new cluster.
const FIRST: u64 = 1000;

/// The objects of a cluster.
#[derive(Debug)]
pub struct Store {
    objects: BTreeMap<Key, Arc<str>>,
    history: VecDeque<Change>,
    /// Watches from an earlier version expire.
    oldest: u64,
    version: watch::Sender<u64>,
    uids: u64,
    drops_allocated: bool,
}

impl Default for Store {
    fn default() -> Self {
        Store {
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            oldest: FIRST,
            version: watch::Sender::new(FIRST),
            uids: 0,
            drops_allocated: false,
        }
    }
}

impl Store {
    /// Returns the resource version of the last change.
    #[must_use]
    pub fn version(&self) -> u64 {
        *self.version.borrow()
    }

    /// Subscribes to changes of the resource version.
    pub(crate) fn versions(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Returns an object.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Value> {
        self.objects.get(key).map(|text| parse(text))
    }

    /// Returns an object as JSON.
    pub(crate) fn text(&self, key: &Key) -> Option<Arc<str>> {
        self.objects.get(key).cloned()
    }

    /// Returns the objects of a kind, in one namespace or all, after the key `after`.
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

    /// Returns all objects of a kind.
    #[must_use]
    pub fn all(&self, kind: &str) -> Vec<Value> {
        let kind = Key::new(kind, "", "").kind();
        let texts = self.texts(kind, None, None);
        texts.map(|(_, text)| parse(text)).collect()
    }

    /// Returns the number of objects of a kind.
    #[must_use]
    pub fn count(&self, kind: &str) -> usize {
        self.texts(Key::new(kind, "", "").kind(), None, None)
            .count()
    }

    /// Returns the changes after this version.
    ///
    /// # Errors
    /// When the version is no longer in the history.
    pub fn since(&self, version: u64) -> Result<impl Iterator<Item = &Change>, Refused> {
        if version < self.oldest {
            return Err(Refused::expired(version, self.oldest));
        }
        let first = self
            .history
            .partition_point(|change| change.version <= version);
        Ok(self.history.range(first..))
    }

    /// Drops the history: watches from earlier versions expire.
    pub fn compact(&mut self) {
        self.history.clear();
        // Other objects change meanwhile, as in every cluster.
        self.version.send_modify(|version| *version += 1);
        self.oldest = self.version();
    }

    /// Drops allocated sizes of claims from now on, as API servers without the feature gate
    /// `RecoverVolumeExpansionFailure` do.
    pub fn drop_allocated_resources(&mut self) {
        self.drops_allocated = true;
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

/// Parses an object that the store wrote.
pub(crate) fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("the store's own text")
}
