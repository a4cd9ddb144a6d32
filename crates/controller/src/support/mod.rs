//! Shared support code: logs, metrics, the health of watches.

pub mod log;
pub mod metrics;
pub mod watch_health;
