//! Block devices: their numbers and nodes, loop devices, and what is on one.

pub mod device;
pub(crate) mod device_node;
pub mod number;
pub mod probe;
