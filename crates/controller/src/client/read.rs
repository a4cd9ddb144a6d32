//! Objects that may have been read in part.

use super::{MaybePartial, resource_as::resource_as};
use kube::Resource;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error},
};
use serde_json::json;

/// An object, as far as it was read. Code that depends on fields that may be missing has to check
/// [`Read::is_truncated`].
#[derive(Clone, Debug)]
pub(crate) struct Read<K> {
    pub object: K,
    /// Whether a part of the object was dropped, or all but its identity because it cannot be understood.
    pub is_truncated: bool,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Read<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let part = match MaybePartial::<K>::deserialize(deserializer)? {
            MaybePartial::Whole(object) => {
                return Ok(Read {
                    object,
                    is_truncated: false,
                });
            }
            MaybePartial::Part(part) => *part,
        };
        let object = match part.object {
            Some(object) => object,
            // An object of an unknown identity would be taken for another one of its name.
            None if part.metadata.uid.is_some() => {
                K::deserialize(json!({"metadata": part.metadata})).map_err(D::Error::custom)?
            }
            None => return Err(D::Error::custom("an object cannot be understood")),
        };
        Ok(Read {
            object,
            is_truncated: true,
        })
    }
}

resource_as! {
    [K: Resource<DynamicType = ()>] Read<K>, K,
    this => this.object.meta(), this.object.meta_mut()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use serde_json::{Value, from_value};

    #[test]
    fn of_what_cannot_be_understood_the_identity_is_read_or_nothing() {
        let read = |metadata: Value| {
            let claim = json!({"metadata": metadata, "spec": {"volumeName": 5}});
            from_value::<Read<PersistentVolumeClaim>>(claim)
        };
        let fields = json!([{"time": "10000-01-01T11:59:59Z"}]);
        let read_in_part = read(json!({"name": "data", "uid": "1", "managedFields": fields}));
        let read_in_part = read_in_part.unwrap();
        assert!(read_in_part.is_truncated);
        assert_eq!(read_in_part.object.metadata.uid.as_deref(), Some("1"));
        assert!(read(json!({"name": "data"})).is_err());
    }
}
