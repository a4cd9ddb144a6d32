//! Decides whether a pod of a set is evicted so that its volumes grow, or why not yet: a pure function.
//!
//! Pods are evicted one at a time, the highest ordinal first among those whose storage has grown, and only while all
//! other pods are ready. Kubelet grows a volume after it has mounted it and before it starts containers, so the
//! replacement cannot start without the growth. A pod that was created after its volumes should grow has had its turn:
//! another eviction would not help. No other pod is evicted until its volumes have grown.

#[cfg(test)]
pub(super) mod tests;

use k8s_openapi::jiff::Timestamp;
use std::{fmt, ops::Range, time::Duration};

/// Time after which online growth has finished, unless something is wrong.
const PENDING: Duration = Duration::from_secs(30);

/// State of a set, of its pods, and of the claims of one pod, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// Whether the set's controller is about to replace pods.
    pub rolls: bool,
    /// Ordinals of the desired pods.
    pub ordinals: Range<i64>,
    /// The existing pods.
    pub pods: Vec<Pod>,
    /// Ordinal of the pod whose turn it is. Some of its claims were asked to grow and have not.
    pub last: i64,
    /// All claims of that pod that have to grow.
    pub claims: Vec<Claim>,
    /// Why that pod's replacement could not start on its node, where its volumes are.
    pub kept_out: Option<String>,
}

/// A pod of the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    pub ordinal: i64,
    pub name: String,
    pub uid: String,
    pub made: Timestamp,
    pub state: State,
    /// Whether its replacement would have the same revision of the set's template.
    pub comes_back: bool,
}

/// The state of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// None of its containers has run. Its volumes grow before one does.
    Starting,
    /// It runs and is not ready, or has not been ready for the set's `minReadySeconds`.
    Unready,
    Ready,
    /// It is being deleted.
    Going,
    /// It was read in part.
    Unknown,
}

/// A claim that requests more than it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub name: String,
    /// Since when only its file system has to grow, if its storage is done.
    pub pending: Option<Timestamp>,
    /// The API server's time of the write that set `pending`, or of a later one. The clock of who wrote `pending` may be
    /// ahead.
    pub written: Option<Timestamp>,
    /// The latest time at which its storage had grown, which may be after `pending`.
    pub stored: Option<Timestamp>,
    /// Whether this process has evicted a pod for this growth.
    pub has_eviction: bool,
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Evict the pod with this name and UID.
    Evict {
        name: String,
        uid: String,
    },
    Wait(WaitReason),
}

/// Why no pod is evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WaitReason {
    Rolls,
    /// The set has more or fewer pods than desired.
    Count,
    Going(String),
    Unready(String),
    /// The pod is so large that it was read in part.
    Large(String),
    /// The replacement would have another revision of the set's template, which nobody has rolled out to this pod.
    Revision(String),
    /// The replacement could not start where its volumes are.
    KeptOut(String),
    /// No claim of the pod grows: they have grown meanwhile, or cannot be asked yet.
    Nothing,
    /// The pod whose turn it is is starting.
    Starts,
    /// Storage has to grow first. Otherwise the replacement could not start.
    Storage(String),
    /// The claim may still grow online. This is the remaining time.
    MayExpand(Duration),
    /// An eviction would be in vain: the pod is a replacement already, and its claim has not grown.
    InVain {
        pod: String,
        claim: String,
    },
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitReason::Rolls => write!(f, "pods of the set are being replaced by a rollout"),
            WaitReason::Count => write!(f, "the set has not the pods that it shall have"),
            WaitReason::Going(pod) => write!(f, "pod {pod} is being deleted"),
            WaitReason::Unready(pod) => write!(f, "pod {pod} is not ready, or not for long enough"),
            WaitReason::Large(pod) => write!(
                f,
                "pod {pod} is too large to be understood; shorten its lists of volumes and owners"
            ),
            WaitReason::Revision(pod) => write!(
                f,
                "pod {pod} would come back with another revision of the set's template than it has; delete it yourself if it may have that one"
            ),
            WaitReason::KeptOut(why) => {
                write!(f, "it could not start again where its volumes are: {why}")
            }
            WaitReason::Nothing => write!(f, "none of its claims grows"),
            WaitReason::Starts => write!(f, "the pod is starting"),
            WaitReason::Storage(claim) => write!(
                f,
                "the storage of claim {claim} has to grow first; see the events of that"
            ),
            WaitReason::MayExpand(_) => write!(f, "it may still grow while its pod runs"),
            WaitReason::InVain { pod, claim } => write!(
                f,
                "pod {pod} was made after claim {claim} was to grow, which has not grown all the same; see the events of both"
            ),
        }
    }
}

pub(super) fn decide(seen: &Snapshot, now: Timestamp) -> Decision {
    match chosen(seen, now) {
        Ok(pod) => Decision::Evict {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        },
        Err(why) => Decision::Wait(why),
    }
}

fn chosen(seen: &Snapshot, now: Timestamp) -> Result<&Pod, WaitReason> {
    if seen.rolls {
        return Err(WaitReason::Rolls);
    }
    let unknown = |pod: &&Pod| pod.state == State::Unknown;
    if let Some(pod) = seen.pods.iter().find(unknown) {
        return Err(WaitReason::Large(pod.name.clone()));
    }
    if let Some(pod) = seen.pods.iter().find(|pod| pod.state == State::Going) {
        return Err(WaitReason::Going(pod.name.clone()));
    }
    let known = |ordinal| seen.pods.iter().any(|pod| pod.ordinal == ordinal);
    if seen.pods.len() != seen.ordinals.clone().count() || !seen.ordinals.clone().all(known) {
        return Err(WaitReason::Count);
    }
    let its_own = |pod: &&Pod| pod.ordinal == seen.last;
    let mut others = seen.pods.iter().filter(|pod| !its_own(pod));
    if let Some(pod) = others.find(|pod| pod.state != State::Ready) {
        return Err(WaitReason::Unready(pod.name.clone()));
    }
    let pod = seen.pods.iter().find(its_own).ok_or(WaitReason::Count)?;
    if pod.state == State::Starting {
        return Err(WaitReason::Starts);
    }
    let pod = waits_for(pod, &seen.claims, now)?;
    if !pod.comes_back {
        return Err(WaitReason::Revision(pod.name.clone()));
    }
    if let Some(why) = &seen.kept_out {
        return Err(WaitReason::KeptOut(why.clone()));
    }
    Ok(pod)
}

/// Returns the pod if all its growing volumes wait for its end, and at least one has since the pod was created.
fn waits_for<'a>(pod: &'a Pod, claims: &[Claim], now: Timestamp) -> Result<&'a Pod, WaitReason> {
    if let Some(claim) = claims.iter().find(|claim| claim.pending.is_none()) {
        return Err(WaitReason::Storage(claim.name.clone()));
    }
    // Times are in whole seconds, and equal ones count as the order that ends the wait. They come from two clocks, so a
    // clock that is ahead must not cause evictions of the replacement.
    let since_made = |claim: &&Claim| {
        let written = claim.written.is_none_or(|written| written >= pod.made);
        !claim.has_eviction && written && claim.pending >= Some(pod.made)
    };
    let newest = claims.iter().filter(since_made).max_by_key(|c| c.pending);
    let Some(since) = newest.and_then(|claim| claim.pending) else {
        return Err(match claims.first() {
            Some(claim) => WaitReason::InVain {
                pod: pod.name.clone(),
                claim: claim.name.clone(),
            },
            None => WaitReason::Nothing,
        });
    };
    let stored = claims.iter().filter_map(|claim| claim.stored);
    let since = stored.fold(since, Ord::max);
    let pending = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    match PENDING.checked_sub(pending) {
        None | Some(Duration::ZERO) => Ok(pod),
        Some(rest) => Err(WaitReason::MayExpand(rest)),
    }
}
