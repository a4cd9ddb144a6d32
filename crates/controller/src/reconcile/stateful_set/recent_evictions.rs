//! Growths for which a pod was evicted.
//!
//! The start of a growth and the creation of a pod are timed by different clocks. The evictions of this process are
//! known without either.

use super::eviction_decision::Claim;
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Lifetime of an entry: longer than any difference of clocks.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);

/// Time of the eviction by claim and start of the growth.
#[derive(Debug, Default)]
pub(super) struct RecentEvictions(Mutex<HashMap<String, Instant>>);

impl RecentEvictions {
    /// Records an eviction for these claims.
    pub fn add(&self, namespace: &str, claims: &[Claim]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, at| at.elapsed() < REMEMBERED);
        all.extend(
            claims
                .iter()
                .map(|claim| (key(namespace, claim), Instant::now())),
        );
    }

    /// Marks claims for whose growth a pod was evicted.
    pub fn mark(&self, namespace: &str, claims: &mut [Claim]) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for claim in claims {
            claim.has_eviction = all.contains_key(&key(namespace, claim));
        }
    }
}

fn key(namespace: &str, claim: &Claim) -> String {
    let since = claim.pending.map(|since| since.to_string());
    format!("{namespace}/{} {}", claim.name, since.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reconcile::stateful_set::eviction_decision::{Decision, decide, tests::alone};
    use k8s_openapi::jiff::Timestamp;

    /// The clock of the growth's start is five minutes ahead, and the growth fails on the node each time.
    #[test]
    fn a_pod_is_stopped_once_for_a_growth_whichever_clock_is_ahead() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let (evictions, mut times) = (RecentEvictions::default(), 0);
        for (asked_at, all) in [(1300, 1), (2300, 2)] {
            let mut made = asked_at - 1200;
            for second in (asked_at..asked_at + 700).step_by(10) {
                let mut seen = alone(at(made), at(asked_at));
                evictions.mark("ns", &mut seen.claims);
                if let Decision::Evict { .. } = decide(&seen, at(second)) {
                    times += 1;
                    evictions.add("ns", &seen.claims);
                    made = second - 300 + 10;
                }
            }
            assert_eq!(times, all);
        }
    }
}
