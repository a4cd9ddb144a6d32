//! Silence of nodes' agents.

use super::{Nodes, removed_nodes::fell_silent};
use crate::api::v1alpha1::StorageNodeStatus;
use k8s_openapi::jiff::Timestamp;
use std::{collections::BTreeMap, fmt, time::Duration};

/// The last heartbeat of a silent agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastHeartbeat {
    /// There was none.
    Never,
    /// The time of the last one, by the node's clock.
    Since(String),
}

impl LastHeartbeat {
    /// Returns the last heartbeat if it is older than this, for a process that has not watched all the time. It
    /// compares clocks of two hosts, so use it only where a difference is harmless.
    pub fn older_than(
        status: &StorageNodeStatus,
        now: Timestamp,
        longest: Duration,
    ) -> Option<Self> {
        let seen = status.last_heartbeat_time.as_ref();
        let seen = seen.and_then(|seen| seen.parse::<Timestamp>().ok());
        let recent = seen.is_some_and(|seen| now.duration_since(seen).unsigned_abs() < longest);
        (!recent).then(|| LastHeartbeat::since(status))
    }

    pub(super) fn since(status: &StorageNodeStatus) -> Self {
        status
            .last_heartbeat_time
            .clone()
            .map_or(LastHeartbeat::Never, LastHeartbeat::Since)
    }
}

impl Nodes {
    /// Marks a node that Kubernetes misses. No new volume is placed there until its agent's next heartbeat.
    pub fn mark_missing(&self, name: &str) {
        if let Some(known) = self.all().get_mut(name) {
            known.is_missing = true;
        }
    }

    /// Returns the last heartbeat of a node that has to act, if its agent is silent.
    pub fn silence(&self, name: &str) -> Option<LastHeartbeat> {
        let all = self.all();
        if let Some(known) = all.get(name) {
            let silent = known.is_silent(self.silence);
            return silent.then(|| LastHeartbeat::since(&known.status));
        }
        let gone = self.gone();
        gone.get(name).map_or(Some(LastHeartbeat::Never), |gone| {
            gone.silence(self.silence)
        })
    }

    /// Returns the last heartbeat of a node where no new volume may be placed: its agent is silent, its StorageNode was
    /// removed, or Kubernetes misses the node.
    pub fn absence(&self, name: &str) -> Option<LastHeartbeat> {
        match self.all().get(name) {
            None => Some(LastHeartbeat::Never),
            Some(known) if known.may_be_asked(self.silence) => None,
            Some(known) => Some(LastHeartbeat::since(&known.status)),
        }
    }

    /// Whether this process has watched the agent for the whole silence limit without any heartbeat.
    pub fn is_unheard(&self, name: &str) -> bool {
        let all = self.all();
        let known = all.get(name).map(|known| known.heard);
        let heard = known.or_else(|| Some(self.gone().get(name)?.heard()));
        let since = heard.or_else(|| self.listens.get().copied());
        since.is_some_and(|since| since.elapsed() >= self.silence)
    }

    /// The silent nodes, with the last heartbeat of each by its own clock.
    pub fn silent(&self) -> BTreeMap<String, Option<String>> {
        let all = self.all();
        let silent = all
            .iter()
            .filter(|(_, known)| known.is_silent(self.silence));
        let silent =
            silent.map(|(name, known)| (name.clone(), known.status.last_heartbeat_time.clone()));
        silent.collect()
    }

    /// Number of silent nodes.
    pub fn count_silent(&self) -> usize {
        let all = self.all();
        let silent = all.values().filter(|known| known.is_silent(self.silence));
        silent.count()
    }

    /// The time without heartbeats after which an agent is silent.
    pub fn longest_silence(&self) -> Duration {
        self.silence
    }

    /// Returns the nodes that have fallen silent since the last call.
    pub fn fell_silent(&self) -> Vec<String> {
        let mut all = self.all();
        let fell = all
            .iter_mut()
            .filter(|(_, known)| known.is_silent(self.silence) && !known.is_reported);
        let fell = fell.map(|(name, known)| {
            known.is_reported = true;
            name.clone()
        });
        fell.chain(fell_silent(&mut self.gone(), self.silence))
            .collect()
    }
}

impl fmt::Display for LastHeartbeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LastHeartbeat::Never => f.write_str("was never heard of"),
            LastHeartbeat::Since(then) => write!(f, "was last heard of at {then}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::SILENCE;

    #[test]
    fn whoever_has_not_listened_goes_by_what_the_agent_says_of_the_time() {
        let now: Timestamp = "2026-11-21T20:03:20Z".parse().unwrap();
        let told = |seen: Option<&str>| {
            let status = StorageNodeStatus {
                last_heartbeat_time: seen.map(str::to_owned),
                ..StorageNodeStatus::default()
            };
            LastHeartbeat::older_than(&status, now, SILENCE)
        };
        assert_eq!(told(Some("2026-11-21T20:00:01Z")), None);
        assert_eq!(told(Some("2026-11-21T20:03:50Z")), None);
        let since = |then: &str| Some(LastHeartbeat::Since(then.to_owned()));
        for long_ago in ["2026-11-21T20:00:00Z", "2026-11-21T20:30:00Z", "yesterday"] {
            assert_eq!(told(Some(long_ago)), since(long_ago));
        }
        assert_eq!(told(None), Some(LastHeartbeat::Never));
    }
}
