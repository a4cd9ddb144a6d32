//! Shares of the rate limit of reads for reviews.
//!
//! Reads wait in the order in which they come, whoever asks for a review. Without a share of its own, each namespace
//! would wait behind all reads for the reviews of another.

use super::{READS, turns::Asker};
use crate::client::{Budget, RateLimit, limited};
use kube::Client;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// The part of the rate limit that one namespace has.
const SHARE: Budget = Budget {
    rate: READS.rate / 2.0,
    burst: READS.burst / 2,
    yields: false,
};

/// Maximum number of remembered shares. Only those are remembered of which a part was used in the last seconds.
const MOST: usize = 1024;

/// The shares of those who ask.
#[derive(Clone, Default)]
pub(super) struct Shares(Arc<Mutex<BTreeMap<Asker, Arc<RateLimit>>>>);

impl Shares {
    /// Returns a client that reads within the share of this asker.
    pub fn client(&self, client: &Client, asker: &Asker) -> Client {
        limited(client, self.of(asker))
    }

    fn of(&self, asker: &Asker) -> Arc<RateLimit> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, share| Arc::strong_count(share) > 1 || !share.is_unused());
        if let Some(share) = all.get(asker) {
            return Arc::clone(share);
        }
        if all.len() >= MOST {
            all.pop_first();
        }
        let share = Arc::new(RateLimit::unused(SHARE));
        all.insert(asker.clone(), Arc::clone(&share));
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::{Instant, advance};

    fn asker(namespace: &str) -> Asker {
        Asker {
            host: [10, 0, 0, 1].into(),
            namespace: namespace.to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_used_its_share_waits_and_others_do_not() {
        advance(Duration::from_secs(60)).await;
        let (shares, begun) = (Shares::default(), Instant::now());
        for _ in 0..SHARE.burst {
            shares.of(&asker("a")).wait().await;
        }
        assert!(begun.elapsed() < Duration::from_millis(50), "a burst");
        for _ in 0..50 {
            shares.of(&asker("a")).wait().await;
        }
        assert!(begun.elapsed() >= Duration::from_secs(1));
        let then = Instant::now();
        for _ in 0..SHARE.burst {
            shares.of(&asker("b")).wait().await;
        }
        assert!(then.elapsed() < Duration::from_millis(50), "it has its own");
    }

    #[tokio::test(start_paused = true)]
    async fn shares_of_which_nothing_is_used_take_no_memory() {
        advance(Duration::from_secs(60)).await;
        let shares = Shares::default();
        for number in 0..2 * MOST {
            shares.of(&asker(&number.to_string())).wait().await;
        }
        assert!(shares.0.lock().unwrap().len() <= MOST);
        advance(Duration::from_secs(2)).await;
        let _used = shares.of(&asker("a"));
        assert_eq!(shares.0.lock().unwrap().len(), 1);
        let again = shares.of(&asker("b"));
        assert_eq!(shares.0.lock().unwrap().len(), 2);
        drop(again);
    }
}
