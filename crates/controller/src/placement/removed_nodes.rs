//! Nodes of which the object with their agents' words was removed. Their agents may live, and speak again.

use super::{LastHeartbeat, NodeRecord};
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;

/// How long it is known when such an agent was last heard of: there is no end of names.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug)]
pub(super) struct RemovedNode {
    /// When its last heartbeat was seen here.
    heard: Instant,
    /// The same by its own clock.
    seen: LastHeartbeat,
    /// Somebody was told that it is silent.
    told: bool,
}

impl From<NodeRecord> for RemovedNode {
    fn from(known: NodeRecord) -> Self {
        RemovedNode {
            heard: known.heard,
            seen: LastHeartbeat::since(&known.status),
            told: known.told,
        }
    }
}

impl RemovedNode {
    pub fn heard(&self) -> Instant {
        self.heard
    }

    /// How long nothing was heard of it, if that is too long.
    pub fn silence(&self, longest: Duration) -> Option<LastHeartbeat> {
        (self.heard.elapsed() >= longest).then(|| self.seen.clone())
    }
}

/// Those that were not silent when this was asked last.
pub(super) fn fell_silent(
    all: &mut BTreeMap<String, RemovedNode>,
    longest: Duration,
) -> Vec<String> {
    let longest_known = REMEMBERED.max(longest.saturating_mul(2));
    all.retain(|_, gone| gone.heard.elapsed() < longest_known);
    let fell = all
        .iter_mut()
        .filter(|(_, gone)| !gone.told && gone.silence(longest).is_some());
    fell.map(|(name, gone)| {
        gone.told = true;
        name.clone()
    })
    .collect()
}
