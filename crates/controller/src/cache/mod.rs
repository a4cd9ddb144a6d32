//! Caches of the objects that the controller watches.

pub(crate) mod claims;
pub(crate) mod classes;
pub(crate) mod event_filter;
pub(crate) mod expansions;
pub(crate) mod own_writes;
pub(crate) mod volumes;
