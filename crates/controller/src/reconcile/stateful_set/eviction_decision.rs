//! Whether a pod of a set is stopped so that its volumes grow, or why not yet: a pure function.
//!
//! Pods are stopped one at a time, the last first of those whose storage has grown, and only while all others are ready. What a pod is
//! replaced by is kept from starting by kubelet, which grows a volume between mounting it and starting
//! containers. So a pod that was made after its volumes were to grow has had its turn: stopping it again
//! would not help, and until its volumes have grown no other one is stopped.

#[cfg(test)]
pub(super) mod tests;

use k8s_openapi::jiff::Timestamp;
use std::{fmt, ops::Range, time::Duration};

/// What grows while it is used has grown after this, unless something is wrong.
const PENDING: Duration = Duration::from_secs(30);

/// What matters of a set and its pods at one moment, and of the claims of one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// Its controller is about to replace pods of itself.
    pub rolls: bool,
    /// The pods that it shall have.
    pub ordinals: Range<i64>,
    /// Those that there are.
    pub pods: Vec<Pod>,
    /// The one whose turn it is: it has claims which were asked to grow and have not.
    pub last: i64,
    /// All claims of that pod that shall grow.
    pub claims: Vec<Claim>,
    /// Why what replaces that pod could not start on its node, where its volumes are.
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
    /// What replaces it now would be of the same revision of the set's template.
    pub comes_back: bool,
}

/// How far a pod has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No container of it has run: its volumes grow before one does.
    Starting,
    /// It runs and is not ready, or was not for as long as the set says.
    Unready,
    Ready,
    /// It is being deleted.
    Going,
    /// Not all of it was read.
    Unknown,
}

/// A claim that asks for more than it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub name: String,
    /// Since when its file system is to grow, if its storage need not any more.
    pub pending: Option<Timestamp>,
    /// When its storage had grown at the latest, which may be after its file system was to grow.
    pub stored: Option<Timestamp>,
    /// This process has stopped a pod for that.
    pub stopped: bool,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Stop the pod with this name and UID.
    Evict {
        name: String,
        uid: String,
    },
    Wait(Why),
}

/// Why no pod is stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Rolls,
    /// The set has more pods than it shall have, or fewer.
    Count,
    Going(String),
    Unready(String),
    /// There is so much in the pod that it was not read.
    Large(String),
    /// What replaces the pod would be of another revision of the set's template than it is, which
    /// nobody has let it have yet.
    Revision(String),
    /// What replaces the pod could not start where its volumes are.
    KeptOut(String),
    /// No claim of the pod grows: it has grown meanwhile, or cannot be asked yet.
    Nothing,
    /// The pod whose turn it is starts, and is not stopped.
    Starts,
    /// Storage has to grow first: stopped too early, the pod could not start again.
    Storage(String),
    /// It may still grow while the pod runs; that shows after this time.
    MayExpand(Duration),
    /// The pod was stopped already, and its claim has not grown.
    InVain {
        pod: String,
        claim: String,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Rolls => write!(f, "pods of the set are being replaced by a rollout"),
            Why::Count => write!(f, "the set has not the pods that it shall have"),
            Why::Going(pod) => write!(f, "pod {pod} is being deleted"),
            Why::Unready(pod) => write!(f, "pod {pod} is not ready, or not for long enough"),
            Why::Large(pod) => write!(
                f,
                "pod {pod} is too large to be understood; shorten its lists of volumes and owners"
            ),
            Why::Revision(pod) => write!(
                f,
                "pod {pod} would come back with another revision of the set's template than it has; delete it yourself if it may have that one"
            ),
            Why::KeptOut(why) => write!(f, "it could not start again where its volumes are: {why}"),
            Why::Nothing => write!(f, "none of its claims grows"),
            Why::Starts => write!(f, "the pod is starting"),
            Why::Storage(claim) => write!(
                f,
                "the storage of claim {claim} has to grow first; see the events of that"
            ),
            Why::MayExpand(_) => write!(f, "it may still grow while its pod runs"),
            Why::InVain { pod, claim } => write!(
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

fn chosen(seen: &Snapshot, now: Timestamp) -> Result<&Pod, Why> {
    if seen.rolls {
        return Err(Why::Rolls);
    }
    let unknown = |pod: &&Pod| pod.state == State::Unknown;
    if let Some(pod) = seen.pods.iter().find(unknown) {
        return Err(Why::Large(pod.name.clone()));
    }
    if let Some(pod) = seen.pods.iter().find(|pod| pod.state == State::Going) {
        return Err(Why::Going(pod.name.clone()));
    }
    let known = |ordinal| seen.pods.iter().any(|pod| pod.ordinal == ordinal);
    if seen.pods.len() != seen.ordinals.clone().count() || !seen.ordinals.clone().all(known) {
        return Err(Why::Count);
    }
    let its_own = |pod: &&Pod| pod.ordinal == seen.last;
    let mut others = seen.pods.iter().filter(|pod| !its_own(pod));
    if let Some(pod) = others.find(|pod| pod.state != State::Ready) {
        return Err(Why::Unready(pod.name.clone()));
    }
    let pod = seen.pods.iter().find(its_own).ok_or(Why::Count)?;
    if pod.state == State::Starting {
        return Err(Why::Starts);
    }
    let pod = waits_for(pod, &seen.claims, now)?;
    if !pod.comes_back {
        return Err(Why::Revision(pod.name.clone()));
    }
    if let Some(why) = &seen.kept_out {
        return Err(Why::KeptOut(why.clone()));
    }
    Ok(pod)
}

/// The pod, if all its volumes that shall grow wait for its end, and at least one since it was made.
fn waits_for<'a>(pod: &'a Pod, claims: &[Claim], now: Timestamp) -> Result<&'a Pod, Why> {
    if let Some(claim) = claims.iter().find(|claim| claim.pending.is_none()) {
        return Err(Why::Storage(claim.name.clone()));
    }
    // Times are of whole seconds: what happened in one counts as done in the order that ends.
    // And they are of two clocks, so the one that is ahead is no reason to stop what replaces a pod.
    let since_made = |claim: &&Claim| !claim.stopped && claim.pending >= Some(pod.made);
    let newest = claims.iter().filter(since_made).max_by_key(|c| c.pending);
    let Some(since) = newest.and_then(|claim| claim.pending) else {
        return Err(match claims.first() {
            Some(claim) => Why::InVain {
                pod: pod.name.clone(),
                claim: claim.name.clone(),
            },
            None => Why::Nothing,
        });
    };
    let stored = claims.iter().filter_map(|claim| claim.stored);
    let since = stored.fold(since, Ord::max);
    let pending = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    match PENDING.checked_sub(pending) {
        None | Some(Duration::ZERO) => Ok(pod),
        Some(rest) => Err(Why::MayExpand(rest)),
    }
}
