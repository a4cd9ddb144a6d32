use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pod(ordinal: i64, state: State) -> Pod {
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
        written: None,
        stored: None,
        has_eviction: false,
    }
}

/// A set of three ready pods, whose last pod's claim has been pending since second 100.
fn ready() -> Snapshot {
    Snapshot {
        rolls: false,
        ordinals: 0..3,
        pods: (0..3).map(|ordinal| pod(ordinal, State::Ready)).collect(),
        last: 2,
        claims: vec![claim("data-db-2", Some(100))],
        kept_out: None,
    }
}

fn evict(ordinal: i64) -> Decision {
    Decision::Evict {
        name: format!("db-{ordinal}"),
        uid: format!("u-{ordinal}"),
    }
}

/// A set of one pod, with a claim that has been pending since this time.
pub fn alone(made: Timestamp, since: Timestamp) -> Snapshot {
    let mut own = pod(0, State::Ready);
    own.made = made;
    Snapshot {
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
    let rest = |seconds| Decision::Wait(WaitReason::MayExpand(Duration::from_secs(seconds)));
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
        let why = WaitReason::Large(format!("db-{ordinal}"));
        assert_eq!(decide(&seen, at(1000)), Decision::Wait(why));
    }
}

#[test]
fn nothing_is_stopped_while_the_set_is_rolled_out_or_scaled() {
    let mut seen = ready();
    seen.rolls = true;
    assert_eq!(decide(&seen, at(1000)), Decision::Wait(WaitReason::Rolls));
    for ordinals in [0..2, 0..4, 1..4] {
        let seen = Snapshot {
            ordinals,
            ..ready()
        };
        assert_eq!(decide(&seen, at(1000)), Decision::Wait(WaitReason::Count));
    }
}

#[test]
fn no_pod_is_stopped_that_would_come_back_with_another_revision() {
    let mut seen = ready();
    seen.pods[0].comes_back = false;
    seen.pods[1].comes_back = false;
    assert_eq!(decide(&seen, at(130)), evict(2), "others stay as they are");
    seen.pods[2].comes_back = false;
    let why = WaitReason::Revision("db-2".to_owned());
    assert_eq!(decide(&seen, at(130)), Decision::Wait(why));
    let still = Decision::Wait(WaitReason::MayExpand(Duration::from_secs(1)));
    assert_eq!(decide(&seen, at(129)), still, "it may still grow as it is");
}

#[test]
fn no_pod_is_stopped_that_could_not_start_again_on_its_node() {
    let mut seen = ready();
    seen.kept_out = Some("node n is cordoned".to_owned());
    let why = WaitReason::KeptOut("node n is cordoned".to_owned());
    assert_eq!(decide(&seen, at(130)), Decision::Wait(why));
    let still = Decision::Wait(WaitReason::MayExpand(Duration::from_secs(1)));
    assert_eq!(decide(&seen, at(129)), still, "it may still grow as it is");
}

#[test]
fn a_pod_is_not_stopped_before_all_its_storage_has_grown() {
    let mut seen = ready();
    seen.claims.push(claim("log-db-2", None));
    let first = WaitReason::Storage("log-db-2".to_owned());
    assert_eq!(decide(&seen, at(1000)), Decision::Wait(first));
    seen.claims[1] = claim("log-db-2", Some(990));
    let rest = WaitReason::MayExpand(Duration::from_secs(20));
    assert_eq!(decide(&seen, at(1000)), Decision::Wait(rest));
    assert_eq!(decide(&seen, at(1020)), evict(2));
}

#[test]
fn what_waits_for_its_file_system_alone_does_so_from_when_its_storage_has_grown() {
    let mut seen = ready();
    seen.claims[0].stored = Some(at(990));
    let rest = |seconds| Decision::Wait(WaitReason::MayExpand(Duration::from_secs(seconds)));
    assert_eq!(decide(&seen, at(1000)), rest(20));
    assert_eq!(decide(&seen, at(1020)), evict(2));
    seen.claims[0].stored = Some(at(50));
    assert_eq!(decide(&seen, at(129)), rest(1), "it had grown before");
    seen.claims[0].stored = Some(at(990));
    seen.pods[2].made = at(980);
    let decision = decide(&seen, at(1020));
    let vain = matches!(decision, Decision::Wait(WaitReason::InVain { .. }));
    assert!(vain, "its turn is told by the claim alone: {decision:?}");
}

/// The condition's clock is five minutes ahead. The leader does not know of the eviction.
#[test]
fn another_leader_does_not_stop_the_replacement_for_the_same_growth() {
    let mut seen = ready();
    seen.claims[0].pending = Some(at(400));
    seen.claims[0].written = Some(at(100));
    assert_eq!(decide(&seen, at(1000)), evict(2));
    seen.pods[2].made = at(160);
    let decision = decide(&seen, at(1000));
    let vain = matches!(decision, Decision::Wait(WaitReason::InVain { .. }));
    assert!(vain, "{decision:?}");
}

#[test]
fn a_pod_is_stopped_once_for_a_growth_and_no_other_one_before_it_has_grown() {
    let mut seen = ready();
    seen.pods[2].made = at(131);
    let vain = WaitReason::InVain {
        pod: "db-2".to_owned(),
        claim: "data-db-2".to_owned(),
    };
    assert_eq!(decide(&seen, at(1000)), Decision::Wait(vain));
    seen.claims.push(claim("log-db-2", Some(200)));
    assert_eq!(decide(&seen, at(1000)), evict(2), "another growth");
    seen.claims.clear();
    let nothing = Decision::Wait(WaitReason::Nothing);
    assert_eq!(decide(&seen, at(1000)), nothing);
}
