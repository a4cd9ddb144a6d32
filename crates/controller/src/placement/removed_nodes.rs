//! Nodes whose StorageNode was removed. Their agents may still run, and report again.

use super::{LastHeartbeat, NodeRecord};
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;

/// Time for which a removed node is remembered, to limit memory.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug)]
pub(super) struct RemovedNode {
    /// The arrival of its last heartbeat.
    heard: Instant,
    /// The last heartbeat by the node's own clock.
    seen: LastHeartbeat,
    /// Whether its silence was reported.
    is_reported: bool,
}

impl From<NodeRecord> for RemovedNode {
    fn from(known: NodeRecord) -> Self {
        RemovedNode {
            heard: known.heard,
            seen: LastHeartbeat::since(&known.status),
            is_reported: known.is_reported,
        }
    }
}

impl RemovedNode {
    pub fn heard(&self) -> Instant {
        self.heard
    }

    /// Returns the last heartbeat if the silence exceeds this.
    pub fn silence(&self, longest: Duration) -> Option<LastHeartbeat> {
        (self.heard.elapsed() >= longest).then(|| self.seen.clone())
    }
}

/// Returns the nodes that have fallen silent since the last call.
pub(super) fn fell_silent(
    all: &mut BTreeMap<String, RemovedNode>,
    longest: Duration,
) -> Vec<String> {
    let longest_known = REMEMBERED.max(longest.saturating_mul(2));
    all.retain(|_, gone| gone.heard.elapsed() < longest_known);
    let fell = all
        .iter_mut()
        .filter(|(_, gone)| !gone.is_reported && gone.silence(longest).is_some());
    fell.map(|(name, gone)| {
        gone.is_reported = true;
        name.clone()
    })
    .collect()
}
