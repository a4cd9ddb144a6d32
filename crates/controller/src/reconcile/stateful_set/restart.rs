//! Whether a pod of a set is stopped so that its volumes grow, or why not yet: a pure function.
//!
//! Pods are stopped one at a time, the last first, and only while all others are ready. What a pod is
//! replaced by is kept from starting by kubelet, which grows a volume between mounting it and starting
//! containers. So a pod that was made after its volumes were to grow has had its turn: stopping it again
//! would not help, and until its volumes have grown no other one is stopped.

use k8s_openapi::jiff::Timestamp;
use std::{fmt, ops::Range, time::Duration};

/// What grows while it is used has grown after this, unless something is wrong.
const PENDING: Duration = Duration::from_secs(30);

/// What matters of a set and its pods at one moment, and of the claims of one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    /// Its controller is about to replace pods of itself.
    pub rolls: bool,
    /// The pods that it shall have.
    pub ordinals: Range<i32>,
    /// Those that there are.
    pub pods: Vec<Pod>,
    /// The last one that has claims which were asked to grow and have not.
    pub last: i32,
    /// All claims of that pod that shall grow.
    pub claims: Vec<Claim>,
    /// Why what replaces that pod could not start on its node, where its volumes are.
    pub kept_out: Option<String>,
}

/// A pod of the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    pub ordinal: i32,
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
    MayGrow(Duration),
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
            Why::Storage(claim) => write!(f, "the storage of claim {claim} has to grow first"),
            Why::MayGrow(_) => write!(f, "it may still grow while its pod runs"),
            Why::InVain { pod, claim } => write!(
                f,
                "pod {pod} was made after claim {claim} was to grow, which has not grown all the same; see the events of both"
            ),
        }
    }
}

pub(super) fn decide(seen: &Moment, now: Timestamp) -> Decision {
    match chosen(seen, now) {
        Ok(pod) => Decision::Evict {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        },
        Err(why) => Decision::Wait(why),
    }
}

fn chosen(seen: &Moment, now: Timestamp) -> Result<&Pod, Why> {
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
    if seen.pods.len() != seen.ordinals.len() || !seen.ordinals.clone().all(known) {
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
        Some(rest) => Err(Why::MayGrow(rest)),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod(ordinal: i32, state: State) -> Pod {
        Pod {
            ordinal,
            name: format!("db-{ordinal}"),
            uid: format!("u-{ordinal}"),
            made: at(0),
            state,
            comes_back: true,
        }
    }

    fn claim(name: &str, pending: Option<i64>) -> Claim {
        Claim {
            name: name.to_owned(),
            pending: pending.map(at),
            stored: None,
            stopped: false,
        }
    }

    /// Three pods that are ready, and the claim of the last one waits since second 100.
    fn ready() -> Moment {
        Moment {
            rolls: false,
            ordinals: 0..3,
            pods: (0..3).map(|ordinal| pod(ordinal, State::Ready)).collect(),
            last: 2,
            claims: vec![claim("data-db-2", Some(100))],
            kept_out: None,
        }
    }

    fn evict(ordinal: i32) -> Decision {
        Decision::Evict {
            name: format!("db-{ordinal}"),
            uid: format!("u-{ordinal}"),
        }
    }

    /// A set of one pod, of which a claim was to grow then.
    pub fn alone(made: Timestamp, since: Timestamp) -> Moment {
        let mut own = pod(0, State::Ready);
        own.made = made;
        Moment {
            rolls: false,
            ordinals: 0..1,
            pods: vec![own],
            last: 0,
            claims: vec![claim("data-db-0", Some(since.as_second()))],
            kept_out: None,
        }
    }

    #[test]
    fn the_last_pod_whose_volume_waits_is_stopped_after_half_a_minute() {
        let rest = |seconds| Decision::Wait(Why::MayGrow(Duration::from_secs(seconds)));
        assert_eq!(decide(&ready(), at(100)), rest(30));
        assert_eq!(decide(&ready(), at(129)), rest(1));
        assert_eq!(decide(&ready(), at(130)), evict(2));
        assert_eq!(decide(&ready(), at(99)), rest(30), "clocks differ");
        let mut next = ready();
        next.last = 1;
        assert_eq!(decide(&next, at(130)), evict(1));
    }

    #[test]
    fn no_pod_is_stopped_while_another_one_is_away_whatever_the_states_of_all() {
        let all = [
            State::Starting,
            State::Unready,
            State::Ready,
            State::Going,
            State::Unknown,
        ];
        let mut stopped = 0;
        for last in 0..3 {
            for number in 0..6_usize.pow(3) {
                let digits = (0..3).map(|place| number / 6_usize.pow(place) % 6);
                let states: Vec<_> = digits.map(|digit| all.get(digit).copied()).collect();
                let mut seen = ready();
                seen.last = last;
                seen.pods = (0..)
                    .zip(&states)
                    .filter_map(|(ordinal, state)| Some(pod(ordinal, (*state)?)))
                    .collect();
                let decision = decide(&seen, at(1000));
                let its_own = states[usize::try_from(last).unwrap()];
                let others = (0..).zip(&states).filter(|(ordinal, _)| *ordinal != last);
                let all_there = others
                    .into_iter()
                    .all(|(_, state)| *state == Some(State::Ready));
                let may = all_there && matches!(its_own, Some(State::Ready | State::Unready));
                assert_eq!(decision == evict(last), may, "{last} of {states:?}");
                stopped += i32::from(may);
            }
        }
        assert_eq!(stopped, 6);
    }

    #[test]
    fn no_pod_is_stopped_while_one_is_too_large_to_be_understood() {
        for ordinal in 0..3 {
            let mut seen = ready();
            seen.pods[ordinal].state = State::Unknown;
            let why = Why::Large(format!("db-{ordinal}"));
            assert_eq!(decide(&seen, at(1000)), Decision::Wait(why));
        }
    }

    #[test]
    fn nothing_is_stopped_while_the_set_is_rolled_out_or_scaled() {
        let mut seen = ready();
        seen.rolls = true;
        assert_eq!(decide(&seen, at(1000)), Decision::Wait(Why::Rolls));
        for ordinals in [0..2, 0..4, 1..4] {
            let seen = Moment {
                ordinals,
                ..ready()
            };
            assert_eq!(decide(&seen, at(1000)), Decision::Wait(Why::Count));
        }
    }

    #[test]
    fn no_pod_is_stopped_that_would_come_back_with_another_revision() {
        let mut seen = ready();
        seen.pods[0].comes_back = false;
        seen.pods[1].comes_back = false;
        assert_eq!(decide(&seen, at(130)), evict(2), "others stay as they are");
        seen.pods[2].comes_back = false;
        let why = Why::Revision("db-2".to_owned());
        assert_eq!(decide(&seen, at(130)), Decision::Wait(why));
        let still = Decision::Wait(Why::MayGrow(Duration::from_secs(1)));
        assert_eq!(decide(&seen, at(129)), still, "it may still grow as it is");
    }

    #[test]
    fn no_pod_is_stopped_that_could_not_start_again_on_its_node() {
        let mut seen = ready();
        seen.kept_out = Some("node n is cordoned".to_owned());
        let why = Why::KeptOut("node n is cordoned".to_owned());
        assert_eq!(decide(&seen, at(130)), Decision::Wait(why));
        let still = Decision::Wait(Why::MayGrow(Duration::from_secs(1)));
        assert_eq!(decide(&seen, at(129)), still, "it may still grow as it is");
    }

    #[test]
    fn a_pod_is_not_stopped_before_all_its_storage_has_grown() {
        let mut seen = ready();
        seen.claims.push(claim("log-db-2", None));
        let first = Why::Storage("log-db-2".to_owned());
        assert_eq!(decide(&seen, at(1000)), Decision::Wait(first));
        seen.claims[1] = claim("log-db-2", Some(990));
        let rest = Why::MayGrow(Duration::from_secs(20));
        assert_eq!(decide(&seen, at(1000)), Decision::Wait(rest));
        assert_eq!(decide(&seen, at(1020)), evict(2));
    }

    #[test]
    fn what_waits_for_its_file_system_alone_does_so_from_when_its_storage_has_grown() {
        let mut seen = ready();
        seen.claims[0].stored = Some(at(990));
        let rest = |seconds| Decision::Wait(Why::MayGrow(Duration::from_secs(seconds)));
        assert_eq!(decide(&seen, at(1000)), rest(20));
        assert_eq!(decide(&seen, at(1020)), evict(2));
        seen.claims[0].stored = Some(at(50));
        assert_eq!(decide(&seen, at(129)), rest(1), "it had grown before");
        seen.claims[0].stored = Some(at(990));
        seen.pods[2].made = at(980);
        let decision = decide(&seen, at(1020));
        let vain = matches!(decision, Decision::Wait(Why::InVain { .. }));
        assert!(vain, "its turn is told by the claim alone: {decision:?}");
    }

    #[test]
    fn a_pod_is_stopped_once_for_a_growth_and_no_other_one_before_it_has_grown() {
        let mut seen = ready();
        seen.pods[2].made = at(131);
        let vain = Why::InVain {
            pod: "db-2".to_owned(),
            claim: "data-db-2".to_owned(),
        };
        assert_eq!(decide(&seen, at(1000)), Decision::Wait(vain));
        seen.claims.push(claim("log-db-2", Some(200)));
        assert_eq!(decide(&seen, at(1000)), evict(2), "another growth");
        seen.claims.clear();
        let nothing = Decision::Wait(Why::Nothing);
        assert_eq!(decide(&seen, at(1000)), nothing);
    }
}
