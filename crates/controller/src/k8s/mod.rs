//! Accessors of Kubernetes' own objects, without I/O.

pub(crate) mod claim;
pub(crate) mod class;
pub(crate) mod meta;
pub(crate) mod node;
pub(crate) mod pod;
pub(crate) mod stateful_set;
pub(crate) mod volume;
