//! Leader election by a Lease (`client-go/tools/leaderelection`).
//!
//! A process takes over a lease only after it has seen the lease unchanged, by its own clock, for the lease's duration.
//! Clocks of different hosts are never compared. Every write is conditioned on the resource version. A leader that
//! cannot renew in time exits before another process may take over.

use crate::{
    client::{
        Refusal, error_message,
        fence::{Fence, end},
        refusal,
    },
    support::log,
};
use anyhow::{Context, Result};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ObjectMeta, PostParams},
};
use std::{iter, time::Duration};
use tokio::time::{Instant, sleep, timeout};

/// The lease duration, and the timeouts that are derived from it.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    seconds: u16,
}

impl Term {
    /// Creates a term of this many seconds, at least six.
    #[must_use]
    pub fn new(seconds: u16) -> Self {
        Term {
            seconds: seconds.max(6),
        }
    }

    fn duration(self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    /// The renew deadline. A request that began before it is answered, or has timed out, while the lease lasts.
    fn renew_deadline(self) -> Duration {
        self.duration()
            .saturating_sub(crate::client::timeouts::TIMEOUT + Duration::from_secs(1))
    }

    fn retry_period(self) -> Duration {
        self.duration() / 8
    }
}

/// Waits until this process is the leader, by the lease of this name. From then on the process exits when it loses the
/// lease.
///
/// # Errors
/// When the API server refuses to show or change leases.
pub async fn lead(
    client: &Client,
    namespace: &str,
    name: &str,
    identity: &str,
    term: Term,
    fence: Fence,
) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let mut seen: Option<(LeaseSpec, Instant)> = None;
    let mut told = false;
    let mut held = loop {
        let asked = Instant::now();
        match try_acquire(&leases, name, identity, term, &mut seen).await {
            Ok(Some(lease)) => break Held::new(lease, asked),
            Ok(None) if !told => {
                log::info("somebody else leads", &[]);
                told = true;
            }
            Ok(None) => {}
            Err(error) => {
                let error = error_message(&error);
                log::warn("cannot take the lease", &[("error", &error)]);
            }
        }
        sleep(term.retry_period()).await;
    };
    fence.set(held.since + term.renew_deadline());
    log::info("leading", &[("identity", identity)]);
    let identity = identity.to_owned();
    tokio::spawn(async move {
        loop {
            sleep(term.retry_period()).await;
            let left =
                (held.since + term.renew_deadline()).saturating_duration_since(Instant::now());
            match timeout(left, held.renew(&leases, &identity, term)).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => end("somebody else took the lease"),
                Ok(Err(error)) => {
                    let error = error_message(&error);
                    log::warn("cannot renew the lease", &[("error", &error)]);
                }
                Err(_) => end("the lease was not renewed in time"),
            }
            fence.set(held.since + term.renew_deadline());
            if held.since.elapsed() >= term.renew_deadline() {
                end("the lease was not renewed in time");
            }
        }
    });
    Ok(())
}

/// The lease while this process holds it.
struct Held {
    lease: Lease,
    /// The start of the write that produced `lease`.
    since: Instant,
    /// Renew times of later writes without an answer, and the starts of these writes. A lost or late answer does not
    /// prove that the write failed.
    unanswered: Vec<(Option<MicroTime>, Instant)>,
}

impl Held {
    fn new(lease: Lease, since: Instant) -> Self {
        Held {
            lease,
            since,
            unanswered: Vec::new(),
        }
    }

    /// Renews the lease. Returns whether this process still holds it.
    async fn renew(&mut self, leases: &Api<Lease>, identity: &str, term: Term) -> Result<bool> {
        loop {
            let asked = Instant::now();
            let wanted = renewal(&self.lease, identity, term);
            let name = wanted.name_any();
            self.unanswered.push((renewed(&wanted), asked));
            match leases.replace(&name, &PostParams::default(), &wanted).await {
                Ok(lease) => {
                    *self = Held::new(lease, asked);
                    return Ok(true);
                }
                Err(error) if refusal(&error) == Refusal::Changed => {}
                Err(error) => return Err(error).context("write the lease"),
            }
            let found = leases.get(&name).await.context("read the lease")?;
            let Some(since) = self.own_write_time(&found, identity) else {
                return Ok(false);
            };
            *self = Held::new(found, since);
        }
    }

    /// Returns when this process began the write that produced `found`, if it did.
    fn own_write_time(&self, found: &Lease, identity: &str) -> Option<Instant> {
        let holder = found.spec.as_ref()?.holder_identity.as_deref();
        let known = iter::once((renewed(&self.lease), self.since));
        let mut own = known.chain(self.unanswered.iter().cloned());
        let then = renewed(found);
        let (_, since) = own.find(|(time, _)| *time == then)?;
        (holder == Some(identity)).then_some(since)
    }
}

/// The last renew time, by the clock of the holder.
fn renewed(lease: &Lease) -> Option<MicroTime> {
    lease.spec.as_ref()?.renew_time.clone()
}

async fn try_acquire(
    leases: &Api<Lease>,
    name: &str,
    identity: &str,
    term: Term,
    seen: &mut Option<(LeaseSpec, Instant)>,
) -> Result<Option<Lease>> {
    let Some(found) = leases.get_opt(name).await.context("read the lease")? else {
        let first = Lease {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
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
    // The identity is the pod's name, and a pod's former process is dead when the next one starts.
    if !holder.is_empty() && holder != identity && since.elapsed() < lasts {
        return Ok(None);
    }
    let wanted = renewal(&found, identity, term);
    match leases.replace(name, &PostParams::default(), &wanted).await {
        Ok(lease) => Ok(Some(lease)),
        Err(error) if refusal(&error) == Refusal::Changed => Ok(None),
        Err(error) => Err(error).context("take the lease"),
    }
}

/// Builds the lease as this process renews or takes it.
fn renewal(lease: &Lease, identity: &str, term: Term) -> Lease {
    let now = MicroTime(now());
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

/// The current time in microseconds, as the API server stores it, because stored and written times are compared.
fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_that_cannot_renew_ends_before_others_may_lead() {
        for seconds in [0, 6, 15, 60] {
            let term = Term::new(seconds);
            let last_write = term.renew_deadline() + crate::client::timeouts::TIMEOUT;
            assert!(last_write < term.duration(), "{seconds}");
            assert!(term.retry_period() < term.renew_deadline(), "{seconds}");
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

    #[test]
    fn a_lease_that_has_changed_is_held_only_if_this_process_wrote_it() {
        let term = Term::new(15);
        let begun = Instant::now();
        let later = |seconds| begun + Duration::from_secs(seconds);
        let at = |of: &Lease, identity, seconds: i64| {
            let mut lease = renewal(of, identity, term);
            let time = MicroTime(Timestamp::from_second(seconds).unwrap());
            lease.spec.as_mut().unwrap().renew_time = Some(time);
            lease
        };
        let first = at(&Lease::default(), "a", 100);
        let mut held = Held::new(first.clone(), begun);
        for (lost, seconds) in [(101, 1), (102, 2)] {
            let lost = at(&first, "a", lost);
            held.unanswered.push((renewed(&lost), later(seconds)));
        }
        let write_time = |found: &Lease| held.own_write_time(found, "a");
        assert_eq!(
            write_time(&first),
            Some(begun),
            "something else of it changed"
        );
        assert_eq!(write_time(&at(&first, "a", 101)), Some(later(1)));
        assert_eq!(write_time(&at(&first, "a", 102)), Some(later(2)));
        assert_eq!(
            write_time(&at(&first, "a", 103)),
            None,
            "another of its name"
        );
        assert_eq!(write_time(&at(&first, "b", 102)), None);
        assert_eq!(write_time(&Lease::default()), None);
    }

    #[test]
    fn a_renewal_is_read_as_it_was_written() {
        let written = renewal(&Lease::default(), "a", Term::new(15));
        let text = serde_json::to_string(&written).unwrap();
        let read: Lease = serde_json::from_str(&text).unwrap();
        assert_eq!(renewed(&read), renewed(&written));
    }
}
