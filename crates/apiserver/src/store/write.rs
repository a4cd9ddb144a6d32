//! Writes: the fields that a client may change, and the removal of objects.

use super::{Key, Store};
use crate::Refused;
use serde_json::{Map, Value, json};

/// Time of all events: no client compares the API server's times.
const NOW: &str = "2026-01-01T00:00:00Z";

/// The part of an object that a write changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All but the status.
    Main,
    /// Only the status.
    Status,
}

/// Preconditions of a deletion.
#[derive(Debug, Default)]
pub(crate) struct Condition {
    pub uid: Option<String>,
    pub version: Option<String>,
}

impl Store {
    /// Deletes an object, or marks it as being deleted.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn remove(&mut self, key: &Key) -> Result<(), Refused> {
        self.delete(key, &Condition::default()).map(|_| ())
    }

    /// Creates an object and returns it.
    ///
    /// # Errors
    /// When the object exists or is malformed.
    pub fn create(&mut self, key: &Key, mut object: Value) -> Result<Value, Refused> {
        let kind = key.kind();
        if key.name.is_empty() {
            let why = "metadata.name: Required value: name or generateName is required";
            return Err(Refused::invalid(kind, "", why));
        }
        if self.objects.contains_key(key) {
            return Err(Refused::there(key));
        }
        if kind.kind == "PersistentVolume"
            && let Some(option) = reserved_option(&object["spec"]["flexVolume"]["options"])
        {
            let why = format!(
                "spec.flexVolume.options[{option}]: Invalid value: {option:?}: must not use reserved namespaces"
            );
            return Err(Refused::invalid(kind, &key.name, &why));
        }
        let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
            return Err(Refused::invalid(kind, &key.name, "metadata is missing"));
        };
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

    /// Changes an object with a function and returns the result.
    ///
    /// # Errors
    /// When the object does not exist, the function fails, or the change is not allowed.
    pub(crate) fn update(
        &mut self,
        key: &Key,
        part: Part,
        change: impl FnOnce(&Value) -> Result<Value, Refused>,
    ) -> Result<Value, Refused> {
        let kind = key.kind();
        let before = self.get(key).ok_or_else(|| Refused::missing(key))?;
        let mut after = change(&before)?;
        let metadata = |object: &Value, field: &str| object["metadata"][field].clone();
        if metadata(&after, "resourceVersion") != metadata(&before, "resourceVersion") {
            return Err(Refused::changed(key));
        }
        let uid = metadata(&after, "uid");
        if !uid.is_null() && uid != metadata(&before, "uid") {
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
            put_or_remove(&mut after["metadata"], field, metadata(&before, field));
        }
        let deleting = !metadata(&before, "deletionTimestamp").is_null();
        let held = finalizers(&after);
        if deleting && held.iter().any(|name| !finalizers(&before).contains(name)) {
            let why = "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted";
            return Err(Refused::invalid(kind, &key.name, why));
        }
        let finalizers = (!held.is_empty()).then(|| json!(held));
        put_or_remove(&mut after["metadata"], "finalizers", json!(finalizers));
        kind.shape_status(&mut after["status"]);
        if self.drops_allocated && kind.kind == "PersistentVolumeClaim" && part == Part::Status {
            for field in ["allocatedResources", "allocatedResourceStatuses"] {
                put_or_remove(&mut after["status"], field, Value::Null);
            }
        }
        if after["status"].is_null() {
            put_or_remove(&mut after, "status", Value::Null);
        }
        if after == before {
            return Ok(before);
        }
        if kind.counts_generations() && part == Part::Main && after["spec"] != before["spec"] {
            let generation = metadata(&before, "generation").as_u64().unwrap_or(0) + 1;
            after["metadata"]["generation"] = generation.into();
        }
        if deleting && held.is_empty() {
            // The watch event has the last stored state, and the client's answer the new one.
            self.put(key, before, "DELETED");
            return Ok(after);
        }
        Ok(self.put(key, after, "MODIFIED"))
    }

    /// Deletes an object, or marks it as being deleted, and returns the answer.
    ///
    /// # Errors
    /// When the object does not exist, or a precondition does not hold.
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
}

fn finalizers(object: &Value) -> Vec<String> {
    let all = object["metadata"]["finalizers"].as_array();
    let names = all.into_iter().flatten().filter_map(Value::as_str);
    names.map(str::to_owned).collect()
}

/// An option that a FlexVolume must not have (`validateFlexPersistentVolumeSource` in pkg/apis/core/validation).
fn reserved_option(options: &Value) -> Option<&String> {
    options.as_object()?.keys().find(|option| {
        let namespace = option.split('/').next().unwrap_or_default();
        let namespace = format!(".{}", namespace.to_lowercase());
        namespace.ends_with(".kubernetes.io") || namespace.ends_with(".k8s.io")
    })
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

/// Applies a merge patch (RFC 7396).
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
