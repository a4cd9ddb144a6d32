//! Runtime of the reconcilers: watches that fill a work queue, and workers that empty it.

pub(crate) mod backoff;
pub(crate) mod reflector;
pub(crate) mod work_queue;
pub(crate) mod workers;
