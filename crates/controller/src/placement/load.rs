//! Volumes that were ordered of a node since its agent last reported its capacity.

use flexvol_sdk::Bytes;
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;

/// Time after which a volume that was not made counts no more.
const FORGET: Duration = Duration::from_secs(300);

/// Ordered volumes by name, with size and time. The load ranks nodes, and refuses nothing, because the agent's report
/// may already include a part of it.
#[derive(Debug, Default)]
pub(super) struct Load(BTreeMap<String, Ordered>);

#[derive(Debug)]
struct Ordered {
    size: Bytes,
    since: Instant,
    is_made: bool,
}

impl Load {
    pub fn add(&mut self, volume: &str, size: Bytes) {
        self.0.retain(|_, ordered| ordered.since.elapsed() < FORGET);
        let ordered = Ordered {
            size,
            since: Instant::now(),
            is_made: false,
        };
        self.0.insert(volume.to_owned(), ordered);
    }

    pub fn mark_made(&mut self, volume: &str) {
        if let Some(ordered) = self.0.get_mut(volume) {
            ordered.is_made = true;
        }
    }

    /// Applies a report of the agent, which includes all volumes that were made before.
    pub fn record_report(&mut self) {
        self.0
            .retain(|_, ordered| !ordered.is_made && ordered.since.elapsed() < FORGET);
    }

    pub fn sum(&self) -> Bytes {
        let recent = self
            .0
            .values()
            .filter(|ordered| ordered.since.elapsed() < FORGET);
        Bytes(recent.fold(0, |sum, ordered| sum.saturating_add(ordered.size.0)))
    }
}
