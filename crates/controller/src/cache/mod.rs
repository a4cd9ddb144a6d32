//! What the controller keeps of the objects that it watches.

pub(crate) mod news;
pub mod nodes;
pub(crate) mod volumes;
