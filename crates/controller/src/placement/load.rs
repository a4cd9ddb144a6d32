//! What was ordered of a node since its agent last told what room there is.

use flexvol_sdk::Bytes;
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;

/// What was not made after so long is waited for by nobody who chooses a node.
const FORGET: Duration = Duration::from_secs(300);

/// Sizes of volumes, by name, and when they were ordered. It ranks nodes, and refuses nothing: some of it may be in
/// what the agent tells already.
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

    pub fn made(&mut self, volume: &str) {
        if let Some(ordered) = self.0.get_mut(volume) {
            ordered.is_made = true;
        }
    }

    /// The agent has told what room there is, after all that was made.
    pub fn told(&mut self) {
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
