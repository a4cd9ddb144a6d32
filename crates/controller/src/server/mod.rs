//! The HTTP that the program serves.

pub(crate) mod listener;
pub mod probes;
