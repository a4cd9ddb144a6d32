//! HTTP servers.

pub(crate) mod listener;
pub mod probes;
