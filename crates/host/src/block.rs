//! Block devices: their numbers, their device nodes, and what they hold.

pub mod device;
pub(crate) mod device_node;
pub mod number;
pub mod probe;
