//! What every part of the program may use: logs, metrics, work queues.

pub mod log;
pub mod metrics;
pub mod watch_health;
pub(crate) mod work_queue;
