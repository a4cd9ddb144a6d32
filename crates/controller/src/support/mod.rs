//! What every part of the program may use: logs, metrics, the health of watches.

pub mod log;
pub mod metrics;
pub mod watch_health;
