//! The objects, and what becomes of them when somebody writes.

use crate::{KINDS, Kind, Refused};
use serde_json::{Map, Value, json};
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

/// What a write is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All but the status.
    Main,
    /// The status alone.
    Status,
}

/// On which condition an object is deleted.
#[derive(Debug, Default)]
pub(crate) struct Condition {
    pub uid: Option<String>,
    pub version: Option<String>,
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

    /// Deletes an object, or begins to.
    ///
    /// # Errors
    /// When it is not there.
    pub fn remove(&mut self, key: &Key) -> Result<(), Refused> {
        self.delete(key, &Condition::default()).map(|_| ())
    }

    /// Makes an object, and returns it.
    ///
    /// # Errors
    /// When one of its name is there, or it is none.
    pub fn create(&mut self, key: &Key, mut object: Value) -> Result<Value, Refused> {
        let kind = key.kind();
        let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
            return Err(Refused::invalid(kind, &key.name, "metadata is missing"));
        };
        if key.name.is_empty() {
            let why = "metadata.name: Required value: name or generateName is required";
            return Err(Refused::invalid(kind, "", why));
        }
        if self.objects.contains_key(key) {
            return Err(Refused::there(key));
        }
        for key in ["resourceVersion", "selfLink", "deletionTimestamp"] {
            meta.remove(key);
        }
        self.uids += 1;
        let uid = format!("00000000-0000-4000-8000-{:012x}", self.uids);
        meta.insert("uid".to_owned(), uid.into());
        meta.insert("creationTimestamp".to_owned(), NOW.into());
        meta.insert("name".to_owned(), key.name.as_str().into());
        if kind.namespaced {
            meta.insert("namespace".to_owned(), key.namespace.as_str().into());
        }
        if kind.counts_generations() {
            meta.insert("generation".to_owned(), 1.into());
        }
        if kind.status
            && let Some(object) = object.as_object_mut()
        {
            object.remove("status");
        }
        kind.complete(&mut object);
        Ok(self.put(key, object, "ADDED"))
    }

    /// Changes an object by a function, and returns what became of it.
    ///
    /// # Errors
    /// When it is not there, or the function refuses, or returns what the object cannot become.
    pub(crate) fn update(
        &mut self,
        key: &Key,
        part: Part,
        change: impl FnOnce(&Value) -> Result<Value, Refused>,
    ) -> Result<Value, Refused> {
        let kind = key.kind();
        let before = self.get(key).ok_or_else(|| Refused::missing(key))?;
        let mut after = change(&before)?;
        let said = |object: &Value, field: &str| object["metadata"][field].clone();
        if said(&after, "resourceVersion") != said(&before, "resourceVersion") {
            return Err(Refused::changed(key));
        }
        let uid = said(&after, "uid");
        if !uid.is_null() && uid != said(&before, "uid") {
            let why = "metadata.uid: Invalid value: field is immutable";
            return Err(Refused::invalid(kind, &key.name, why));
        }
        let fields = if part == Part::Status {
            let status = after["status"].take();
            after = before.clone();
            put_or_remove(&mut after, "status", status);
            &[][..]
        } else {
            if kind.status {
                put_or_remove(&mut after, "status", before["status"].clone());
            }
            &[
                "uid",
                "creationTimestamp",
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
                "generation",
                "name",
                "namespace",
            ][..]
        };
        for field in fields {
            put_or_remove(&mut after["metadata"], field, said(&before, field));
        }
        let deleting = !said(&before, "deletionTimestamp").is_null();
        let held = finalizers(&after);
        if deleting && held.iter().any(|name| !finalizers(&before).contains(name)) {
            let why = "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted";
            return Err(Refused::invalid(kind, &key.name, why));
        }
        let finalizers = (!held.is_empty()).then(|| json!(held));
        put_or_remove(&mut after["metadata"], "finalizers", json!(finalizers));
        kind.shape_status(&mut after["status"]);
        if after["status"].is_null() {
            put_or_remove(&mut after, "status", Value::Null);
        }
        if after == before {
            return Ok(before);
        }
        if kind.counts_generations() && part == Part::Main && after["spec"] != before["spec"] {
            let generation = said(&before, "generation").as_u64().unwrap_or(0) + 1;
            after["metadata"]["generation"] = generation.into();
        }
        if deleting && held.is_empty() {
            // Watches are told of what was there, and whoever let go of it of what it became.
            self.put(key, before, "DELETED");
            return Ok(after);
        }
        Ok(self.put(key, after, "MODIFIED"))
    }

    /// Deletes an object, or begins to, and returns what the answer to it is.
    ///
    /// # Errors
    /// When it is not there, or is not what the condition says.
    pub(crate) fn delete(&mut self, key: &Key, condition: &Condition) -> Result<Value, Refused> {
        let mut object = self.get(key).ok_or_else(|| Refused::missing(key))?;
        for (name, field, wanted) in [
            ("UID", "uid", &condition.uid),
            ("ResourceVersion", "resourceVersion", &condition.version),
        ] {
            let is = object["metadata"][field].as_str().unwrap_or_default();
            if let Some(wanted) = wanted
                && wanted != is
            {
                let why = format!(
                    "Precondition failed: {name} in precondition: {wanted}, {name} in object meta: {is}"
                );
                return Err(Refused::conflict(key, &why));
            }
        }
        if finalizers(&object).is_empty() {
            let uid = object["metadata"]["uid"].clone();
            let last = self.put(key, object, "DELETED");
            if key.kind().answers_what_was_deleted() {
                return Ok(last);
            }
            let kind = key.kind();
            let mut details = json!({"name": key.name, "kind": kind.plural, "uid": uid});
            if !kind.group.is_empty() {
                details["group"] = kind.group.into();
            }
            return Ok(json!({
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "details": details,
            }));
        }
        if !object["metadata"]["deletionTimestamp"].is_null() {
            return Ok(object);
        }
        let meta = &mut object["metadata"];
        meta["deletionTimestamp"] = NOW.into();
        meta["deletionGracePeriodSeconds"] = 0.into();
        if let Some(generation) = meta["generation"].as_u64() {
            meta["generation"] = (generation + 1).into();
        }
        Ok(self.put(key, object, "MODIFIED"))
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

/// When everything happens here: no client compares times of the API server.
const NOW: &str = "2026-01-01T00:00:00Z";

/// An object from its text, which the store wrote itself.
pub(crate) fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("the store's own text")
}

fn finalizers(object: &Value) -> Vec<String> {
    let all = object["metadata"]["finalizers"].as_array();
    let names = all.into_iter().flatten().filter_map(Value::as_str);
    names.map(str::to_owned).collect()
}

fn put_or_remove(object: &mut Value, field: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        if value.is_null() {
            object.remove(field);
        } else {
            object.insert(field.to_owned(), value);
        }
    }
}

/// A merge patch (RFC 7396).
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    if let Some(target) = target.as_object_mut() {
        for (key, value) in patch {
            if value.is_null() {
                target.remove(key);
            } else {
                merge(target.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
    }
}
