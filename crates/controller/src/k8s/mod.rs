//! Accessors of Kubernetes' own objects. Nothing here asks the API server.

pub(crate) mod claim;
pub(crate) mod class;
pub(crate) mod meta;
pub(crate) mod node;
pub(crate) mod pod;
pub(crate) mod stateful_set;
pub(crate) mod volume;
