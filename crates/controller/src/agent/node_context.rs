//! What the parts of an agent share.

use super::{capabilities::KnownCapabilities, exec::Drivers};
use crate::{drivers::ServedDrivers, runtime::work_queue::Queue, support::metrics::Metrics};
use kube::Client;
use std::sync::Arc;

/// A node with its drivers.
pub(super) struct NodeContext {
    pub client: Client,
    /// The node's name.
    pub node: String,
    pub ours: ServedDrivers,
    pub drivers: Drivers,
    pub capabilities: KnownCapabilities,
    /// NodeVolumes that wait for a worker.
    pub queue: Arc<Queue>,
    pub metrics: Metrics,
}
