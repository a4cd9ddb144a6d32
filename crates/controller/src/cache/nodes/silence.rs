//! How long nothing was heard of a node's agent.

use crate::api::v1alpha1::StorageNodeStatus;
use k8s_openapi::jiff::Timestamp;
use std::{fmt, time::Duration};

/// Nothing is heard of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Silence {
    /// There never was one.
    Never,
    /// Its last words are of then, by the node's clock.
    Since(String),
}

impl Silence {
    /// How long nothing was heard of an agent, if that is longer than this, for whoever has not listened
    /// all the time. Only for what is no harm if the clocks of two hosts differ.
    pub fn told(status: &StorageNodeStatus, now: Timestamp, longest: Duration) -> Option<Self> {
        let seen = status.seen.as_ref();
        let seen = seen.and_then(|seen| seen.parse::<Timestamp>().ok());
        let recent = seen.is_some_and(|seen| now.duration_since(seen).unsigned_abs() < longest);
        (!recent).then(|| Silence::since(status))
    }

    pub(super) fn since(status: &StorageNodeStatus) -> Self {
        status.seen.clone().map_or(Silence::Never, Silence::Since)
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Silence::Never => f.write_str("was never heard of"),
            Silence::Since(then) => write!(f, "was last heard of at {then}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::nodes::SILENCE;

    #[test]
    fn whoever_has_not_listened_goes_by_what_the_agent_says_of_the_time() {
        let now: Timestamp = "2026-11-21T20:03:20Z".parse().unwrap();
        let told = |seen: Option<&str>| {
            let seen = seen.map(str::to_owned);
            let status = StorageNodeStatus {
                seen,
                ..StorageNodeStatus::default()
            };
            Silence::told(&status, now, SILENCE)
        };
        assert_eq!(told(Some("2026-11-21T20:00:01Z")), None);
        assert_eq!(told(Some("2026-11-21T20:03:50Z")), None);
        let since = |then: &str| Some(Silence::Since(then.to_owned()));
        for long_ago in ["2026-11-21T20:00:00Z", "2026-11-21T20:30:00Z", "yesterday"] {
            assert_eq!(told(Some(long_ago)), since(long_ago));
        }
        assert_eq!(told(None), Some(Silence::Never));
    }
}
