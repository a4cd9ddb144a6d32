//! What the controller keeps of the objects that it watches.

pub(crate) mod claims;
pub(crate) mod classes;
pub(crate) mod event_filter;
pub(crate) mod expansions;
pub(crate) mod own_writes;
pub(crate) mod volumes;
