//! Objects that may have been read in part.

use super::resource_as::resource_as;
use kube::Resource;
use serde::Deserialize;

/// An object, as far as it was read. Code that depends on fields that may be missing has to check
/// [`Read::is_truncated`].
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Read<K> {
    #[serde(flatten)]
    pub object: K,
    /// Whether a part of the object was dropped.
    #[serde(default, rename = "cut")]
    pub is_truncated: bool,
}

resource_as! {
    [K: Resource<DynamicType = ()>] Read<K>, K,
    this => this.object.meta(), this.object.meta_mut()
}
