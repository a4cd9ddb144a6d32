//! The reconcilers: each brings one kind of object to its desired state.

pub(crate) mod node_gc;
pub(crate) mod stateful_set;
pub mod storage_capacity;
pub mod volume;
