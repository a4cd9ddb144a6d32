//! Objects of lists and watches. One that cannot be understood must not end the list or watch of all others.

use super::resource_as::resource_as;
use kube::{Resource, api::ObjectMeta};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

/// An object, as far as a list or watch told of it.
#[derive(Clone, Debug)]
pub(crate) enum MaybePartial<K> {
    /// All that is needed of it.
    Whole(K),
    /// A part of it.
    Part(Box<PartialObject<K>>),
}

/// An object of which a part was dropped, or that lacks required fields.
#[derive(Clone, Debug)]
pub(crate) struct PartialObject<K> {
    /// Which object it is, and whether it is being deleted.
    pub metadata: ObjectMeta,
    /// The rest, unless required fields are missing.
    pub object: Option<K>,
}

impl<K> MaybePartial<K> {
    /// The object, or what is known of it, unless required fields are missing.
    pub fn object(&self) -> Option<&K> {
        match self {
            MaybePartial::Whole(object) => Some(object),
            MaybePartial::Part(part) => part.object.as_ref(),
        }
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for MaybePartial<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let object = K::deserialize(&value).ok();
        let is_truncated = value.get("cut").and_then(Value::as_bool) == Some(true);
        Ok(match object {
            Some(object) if !is_truncated => MaybePartial::Whole(object),
            object => {
                let metadata = metadata(&value);
                MaybePartial::Part(Box::new(PartialObject { metadata, object }))
            }
        })
    }
}

/// Returns the metadata, or only which object it is and whether it is being deleted if the rest cannot be understood.
fn metadata(value: &Value) -> ObjectMeta {
    const SURE: [&str; 5] = [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "deletionTimestamp",
    ];
    let Some(Value::Object(all)) = value.get("metadata") else {
        return ObjectMeta::default();
    };
    let whole = ObjectMeta::deserialize(all);
    let identity = || {
        let mut sure = all.clone();
        sure.retain(|name, _| SURE.contains(&name.as_str()));
        ObjectMeta::deserialize(Value::Object(sure))
    };
    whole.or_else(|_| identity()).unwrap_or_default()
}

resource_as! {
    [K: Resource<DynamicType = ()>] MaybePartial<K>, K,
    this => match this {
        MaybePartial::Whole(object) => object.meta(),
        MaybePartial::Part(part) => &part.metadata,
    },
    match this {
        MaybePartial::Whole(object) => object.meta_mut(),
        MaybePartial::Part(part) => &mut part.metadata,
    }
}
