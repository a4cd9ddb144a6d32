//! What every reconciler runs on: the loop that watches.

pub(crate) mod reflector;
