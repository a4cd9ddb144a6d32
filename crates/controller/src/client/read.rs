//! Objects that may have been read in part.

use kube::{Resource, api::ObjectMeta};
use serde::Deserialize;
use std::borrow::Cow;

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

impl<K: Resource<DynamicType = ()>> Resource for Read<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }
    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }
    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }
    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }
    fn meta(&self) -> &ObjectMeta {
        self.object.meta()
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.object.meta_mut()
    }
}
