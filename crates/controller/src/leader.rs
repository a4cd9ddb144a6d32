//! One leader at a time, by a Lease (`client-go/tools/leaderelection`).
//!
//! A lease is taken over only after it was seen unchanged, by this process's own clock, for as long
//! as it says: clocks of different hosts are never compared. Every write of it is conditioned on its
//! resource version. Whoever cannot renew it in time ends at once, before others may take it.

use crate::{
    api::{Fence, Refusal, refusal, words},
    log,
};
use anyhow::{Context, Result};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use std::{process, time::Duration};
use tokio::time::{Instant, sleep};

/// The lease's name.
const NAME: &str = "flexvol-controller";

/// How long a lease lasts, and what follows from it.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    seconds: u16,
}

impl Term {
    /// A lease of so many seconds, at least six.
    #[must_use]
    pub fn new(seconds: u16) -> Self {
        Term {
            seconds: seconds.max(6),
        }
    }

    fn lasts(self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    /// Requests that were begun before this are answered, or given up, while the lease lasts.
    fn deadline(self) -> Duration {
        self.lasts()
            .saturating_sub(crate::api::PATIENCE + Duration::from_secs(1))
    }

    fn pause(self) -> Duration {
        self.lasts() / 8
    }
}

/// Waits until this process leads; from then on the process ends when it leads no more.
///
/// # Errors
/// When the API server refuses to show or change leases.
pub async fn lead(
    client: &Client,
    namespace: &str,
    identity: &str,
    term: Term,
    fence: Fence,
) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let mut seen: Option<(LeaseSpec, Instant)> = None;
    let mut told = false;
    let mut lease = loop {
        let asked = Instant::now();
        match attempt(&leases, identity, term, &mut seen).await {
            Ok(Some(lease)) => break (lease, asked),
            Ok(None) if !told => {
                log::info("somebody else leads", &[]);
                told = true;
            }
            Ok(None) => {}
            Err(error) => {
                let error = words(&error);
                log::warn("cannot take the lease", &[("error", &error)]);
            }
        }
        sleep(term.pause()).await;
    };
    fence.set(lease.1 + term.deadline());
    log::info("leading", &[("identity", identity)]);
    let identity = identity.to_owned();
    let write = PostParams::default();
    tokio::spawn(async move {
        loop {
            sleep(term.pause()).await;
            let asked = Instant::now();
            let wanted = renewal(&lease.0, &identity, term);
            let renewed = leases.replace(NAME, &write, &wanted);
            let left = (lease.1 + term.deadline()).saturating_duration_since(asked);
            match tokio::time::timeout(left, renewed).await {
                Ok(Ok(renewed)) => {
                    lease = (renewed, asked);
                    fence.set(asked + term.deadline());
                }
                Ok(Err(error)) if refusal(&error) == Refusal::Changed => {
                    end("somebody else took the lease")
                }
                Ok(Err(error)) => {
                    let error = error.to_string();
                    log::warn("cannot renew the lease", &[("error", &error)]);
                }
                Err(_) => end("the lease was not renewed in time"),
            }
            if lease.1.elapsed() >= term.deadline() {
                end("the lease was not renewed in time");
            }
        }
    });
    Ok(())
}

/// Ends this process: another may lead.
pub(crate) fn end(why: &str) -> ! {
    log::warn("this process leads no more, and ends", &[("why", why)]);
    process::exit(1)
}

async fn attempt(
    leases: &Api<Lease>,
    identity: &str,
    term: Term,
    seen: &mut Option<(LeaseSpec, Instant)>,
) -> Result<Option<Lease>> {
    let Some(found) = leases.get_opt(NAME).await.context("read the lease")? else {
        let first = Lease {
            metadata: ObjectMeta {
                name: Some(NAME.to_owned()),
                ..ObjectMeta::default()
            },
            spec: None,
        };
        let wanted = renewal(&first, identity, term);
        return match leases.create(&PostParams::default(), &wanted).await {
            Ok(lease) => Ok(Some(lease)),
            Err(error) if refusal(&error) == Refusal::Changed => Ok(None),
            Err(error) => Err(error).context("make the lease"),
        };
    };
    let spec = found.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.clone().unwrap_or_default();
    let lasts = Duration::from_secs(
        spec.lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .unwrap_or_default(),
    );
    let since = match seen {
        Some((last, since)) if *last == spec => *since,
        _ => {
            let now = Instant::now();
            *seen = Some((spec, now));
            now
        }
    };
    // A pod's name is the identity, and its former process is dead when the next one starts.
    if !holder.is_empty() && holder != identity && since.elapsed() < lasts {
        return Ok(None);
    }
    let wanted = renewal(&found, identity, term);
    match leases.replace(NAME, &PostParams::default(), &wanted).await {
        Ok(lease) => Ok(Some(lease)),
        Err(error) if refusal(&error) == Refusal::Changed => Ok(None),
        Err(error) => Err(error).context("take the lease"),
    }
}

/// The lease as this process wants it.
fn renewal(lease: &Lease, identity: &str, term: Term) -> Lease {
    let now = MicroTime(Timestamp::now());
    let before = lease.spec.clone().unwrap_or_default();
    let mine = before.holder_identity.as_deref() == Some(identity);
    let transitions = before.lease_transitions.unwrap_or(0);
    Lease {
        metadata: lease.metadata.clone(),
        spec: Some(LeaseSpec {
            acquire_time: before
                .acquire_time
                .clone()
                .filter(|_| mine)
                .or(Some(now.clone())),
            holder_identity: Some(identity.to_owned()),
            lease_duration_seconds: Some(term.seconds.into()),
            lease_transitions: Some(if mine { transitions } else { transitions + 1 }),
            renew_time: Some(now),
            ..before
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_that_cannot_renew_ends_before_others_may_lead() {
        for seconds in [0, 6, 15, 60] {
            let term = Term::new(seconds);
            let last_write = term.deadline() + crate::api::PATIENCE;
            assert!(last_write < term.lasts(), "{seconds}");
            assert!(term.pause() < term.deadline(), "{seconds}");
        }
    }

    #[test]
    fn taking_a_lease_counts_and_renewing_does_not() {
        let first = renewal(&Lease::default(), "a", Term::new(15));
        let again = renewal(&first, "a", Term::new(15));
        let taken = renewal(&again, "b", Term::new(15));
        let transitions = |lease: &Lease| lease.spec.as_ref().unwrap().lease_transitions;
        assert_eq!(
            [&first, &again, &taken].map(transitions),
            [Some(1), Some(1), Some(2)]
        );
        let acquired = |lease: &Lease| lease.spec.clone().unwrap().acquire_time;
        assert_eq!(acquired(&first), acquired(&again));
    }
}
