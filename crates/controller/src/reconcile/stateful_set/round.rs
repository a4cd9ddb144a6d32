//! Progress of one pass over a set's claims.

use super::{
    DONE, SOON, TURN, WAITS,
    evict::Unfinished,
    needs::{Need, WantedClaim},
    phases::Phase,
};
use crate::{
    api::well_known::checksum,
    k8s::stateful_set::{ordinals, restarts, wanted},
    runtime::work_queue::Outcome,
};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::ResourceExt;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// One pass over a set's claims, which may take several turns.
#[derive(Clone, Debug, Default)]
pub(super) struct Round {
    /// Checksum of the request at its start. A changed request begins a new round.
    pub request_checksum: u64,
    /// Version of the set in its last turn.
    pub version: Option<String>,
    /// Number of claims done.
    pub examined: usize,
    /// Whether some of them wait for something.
    waits: bool,
    /// Whether some of them could not be asked.
    unasked: bool,
    /// Whether some of them were asked to grow in this round.
    pub asked: bool,
    /// Ordinals of pods with claims that were asked and have not grown. Claims that cannot be asked block no other.
    grow: BTreeSet<i64>,
    /// Ordinals of pods with a claim whose storage cannot grow, with that claim. They block no other either.
    pub fail: BTreeMap<i64, String>,
    /// The last pod that was passed over. The next turn goes on below it.
    pub passed: Option<i64>,
    /// What is known of the pod below it, if a turn has begun with that.
    pub unfinished: Option<Unfinished>,
}

impl Round {
    pub fn new(set: &StatefulSet) -> Self {
        let text = format!("{:?} {:?} {:?}", set.uid(), wanted(set), ordinals(set));
        Round {
            request_checksum: checksum(&text),
            version: set.resource_version(),
            ..Round::default()
        }
    }

    /// The next turn of this round, or the first one of a new round if the set now requests something else. Returns
    /// also the pause after it: a set that was edited meanwhile, however, rests.
    pub fn next(self, set: &StatefulSet) -> (Self, Duration) {
        let new = Round::new(set);
        let rest = if self.version == new.version {
            Duration::ZERO
        } else {
            SOON
        };
        let next = if self.request_checksum == new.request_checksum {
            Round {
                version: new.version,
                ..self
            }
        } else {
            new
        };
        (next, rest)
    }

    /// Records what a claim needs.
    pub fn found(&mut self, need: &Need, asked: &WantedClaim) {
        self.examined += 1;
        self.asked |= matches!(need, Need::Ask(_));
        self.waits |= matches!(need, Need::Time | Need::Growth | Need::Storage);
        self.unasked |= *need == Need::Time;
        match need {
            Need::Growth => {
                self.grow.insert(asked.ordinal);
            }
            Need::Storage => {
                self.fail.insert(asked.ordinal, asked.claim.clone());
            }
            _ => {}
        }
    }

    /// Ordinals of the next pods that may be evicted, the highest first, as many as one turn may look at.
    pub fn turns(&self) -> Vec<i64> {
        let able = |ordinal: &&i64| {
            !self.fail.contains_key(ordinal) && self.passed.is_none_or(|passed| **ordinal < passed)
        };
        let able = self.grow.iter().rev().filter(able);
        able.take(TURN).copied().collect()
    }

    /// The phase of the set, once all claims were examined.
    pub fn phase(&self, set: &StatefulSet) -> Phase {
        let restarts = restarts(set);
        let mut sizes = wanted(set).into_iter().map(|(_, size)| size);
        let is_mistaken = restarts.is_err() || sizes.any(|size| size.is_err());
        if is_mistaken || !self.fail.is_empty() {
            Phase::Failing
        } else if self.unasked {
            Phase::Waiting
        } else if self.asked {
            Phase::Growing
        } else if self.grow.is_empty() {
            Phase::Done
        } else if restarts == Ok(true) {
            Phase::Restarting
        } else {
            Phase::Growing
        }
    }

    /// The outcome for all claims.
    pub fn outcome(&self) -> Outcome {
        match (self.asked, self.waits) {
            (true, _) => Outcome::RequeueAfter(SOON),
            (false, true) => Outcome::RequeueWithBackoff(WAITS),
            (false, false) => Outcome::RequeueWithBackoff(DONE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::stateful_set::tests::set;
    use flexvol_sdk::Bytes;
    use serde_json::{Value, json};

    #[test]
    fn a_set_is_looked_at_more_rarely_once_all_its_claims_have_their_size() {
        let outcome = |asked: bool, waits: bool| {
            let mut round = Round::default();
            (round.asked, round.waits) = (asked, waits);
            round.outcome()
        };
        assert_eq!(outcome(true, true), Outcome::RequeueAfter(SOON));
        assert_eq!(outcome(true, false), Outcome::RequeueAfter(SOON));
        assert_eq!(outcome(false, true), Outcome::RequeueWithBackoff(WAITS));
        assert_eq!(outcome(false, false), Outcome::RequeueWithBackoff(DONE));
    }

    #[test]
    fn what_cannot_be_asked_to_grow_keeps_no_other_pod_from_its_turn() {
        let mut round = Round::default();
        for (ordinal, need) in (0..).zip([Need::Time, Need::Growth, Need::Growth, Need::Time]) {
            round.found(&need, &asked("data", ordinal));
        }
        assert_eq!((round.examined, round.turns()), (4, vec![2, 1]));
        let mut refused = Round::default();
        refused.found(&Need::Time, &asked("data", 3));
        assert_eq!(refused.turns(), [0_i64; 0]);
        assert_eq!(refused.outcome(), Outcome::RequeueWithBackoff(WAITS));
    }

    #[test]
    fn a_set_is_in_the_phase_of_the_claim_that_has_come_least_far() {
        let annotated = |offline: Option<&str>, size: &str| {
            let mut set = set(json!({}));
            let mut all = BTreeMap::from([("grow.flexvol.dev/data".to_owned(), size.to_owned())]);
            let offline = offline.map(|text| ("grow.flexvol.dev/offline".to_owned(), text.into()));
            all.extend(offline);
            set.metadata.annotations = Some(all);
            set
        };
        let [online, offline] = [None, Some("restart")].map(|text| annotated(text, "2Gi"));
        let phase = |set: &StatefulSet, needs: &[Need]| {
            let mut round = Round::new(set);
            for (ordinal, need) in (0..).zip(needs) {
                round.found(need, &asked("data", ordinal));
            }
            round.phase(set)
        };
        let done = [Need::Nothing, Need::Smaller(Bytes(1))];
        assert_eq!(phase(&online, &done), Phase::Done);
        assert_eq!(
            phase(&online, &[Need::Nothing, Need::Growth]),
            Phase::Growing
        );
        assert_eq!(
            phase(&offline, &[Need::Nothing, Need::Growth]),
            Phase::Restarting
        );
        let asks = [Need::Growth, Need::Ask(Bytes(1))];
        assert_eq!(
            phase(&offline, &asks),
            Phase::Growing,
            "no pod is evicted yet"
        );
        assert_eq!(phase(&offline, &[Need::Time, Need::Growth]), Phase::Waiting);
        let full = [Need::Time, Need::Growth, Need::Storage];
        assert_eq!(phase(&offline, &full), Phase::Failing);
        for mistaken in [annotated(None, "2 Gi"), annotated(Some("now"), "2Gi")] {
            assert_eq!(phase(&mistaken, &[Need::Nothing]), Phase::Failing);
        }
    }

    fn asked(template: &str, ordinal: i64) -> WantedClaim {
        WantedClaim {
            claim: format!("{template}-db-{ordinal}"),
            ordinal,
            size: Bytes(1),
        }
    }

    #[test]
    fn a_pod_whose_storage_cannot_grow_keeps_no_other_pod_from_its_turn() {
        let mut round = Round::default();
        // The last pod's node is full. Of another pod's two claims, one can grow and one cannot.
        for (template, ordinal, need) in [
            ("data", 3, Need::Storage),
            ("data", 2, Need::Growth),
            ("data", 1, Need::Growth),
            ("data", 0, Need::Growth),
            ("log", 3, Need::Nothing),
            ("log", 2, Need::Storage),
        ] {
            round.found(&need, &asked(template, ordinal));
        }
        assert_eq!(round.turns(), [1, 0]);
        round.passed = Some(1);
        assert_eq!(round.turns(), [0], "it goes on where the last turn ended");
        assert_eq!(round.fail.last_key_value().unwrap().1, "data-db-3");
        assert_eq!(round.outcome(), Outcome::RequeueWithBackoff(WAITS));
    }

    #[test]
    fn a_set_that_is_edited_in_its_round_rests_after_the_turn_whatever_was_edited() {
        let of = |version: &str, more: Value| {
            let mut set = set(more);
            set.metadata.resource_version = Some(version.to_owned());
            set
        };
        let mut round = Round::new(&of("1", json!({})));
        round.found(&Need::Growth, &asked("data", 2));
        let (round, rest) = round.next(&of("1", json!({})));
        assert_eq!((round.examined, rest), (1, Duration::ZERO));
        let (round, rest) = round.next(&of("2", json!({"serviceName": "other"})));
        assert_eq!((round.examined, rest), (1, SOON));
        let (round, rest) = round.next(&of("3", json!({"replicas": 4})));
        assert_eq!((round.examined, rest), (0, SOON));
        let (_, rest) = round.next(&of("3", json!({"replicas": 4})));
        assert_eq!(rest, Duration::ZERO);
    }

    #[test]
    fn a_round_goes_on_while_the_set_asks_for_the_same() {
        let of = |more: Value| Round::new(&set(more)).request_checksum;
        let same = of(json!({}));
        assert_eq!(of(json!({"serviceName": "other"})), same);
        assert_ne!(of(json!({"replicas": 4})), same);
        assert_ne!(of(json!({"volumeClaimTemplates": []})), same);
    }
}
