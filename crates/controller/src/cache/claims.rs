//! Cache of claims that need work, as watches report them, and of those that fit no node.

use super::event_filter::ClaimSummary;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Claims by the names of their volumes.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    all: HashMap<String, ClaimSummary>,
    /// Volumes that fitted no node at their last reconciliation. They are reconciled again when nodes offer more.
    unplaceable: Unplaceable,
    /// Whether a node offers more than before.
    offered: bool,
    /// Volumes that are being reconciled, and whether their claims were forgotten meanwhile.
    reconciling: HashMap<String, bool>,
}

/// Volumes, with the namespaces of their claims.
#[derive(Debug, Default)]
struct Unplaceable {
    all: HashMap<String, String>,
    by_namespace: HashMap<String, usize>,
}

impl Unplaceable {
    fn insert(&mut self, volume: &str, namespace: &str) {
        self.remove(volume);
        self.all.insert(volume.to_owned(), namespace.to_owned());
        *self.by_namespace.entry(namespace.to_owned()).or_default() += 1;
    }

    fn remove(&mut self, volume: &str) {
        let Some(namespace) = self.all.remove(volume) else {
            return;
        };
        if let Some(count) = self.by_namespace.get_mut(&namespace) {
            *count -= 1;
            if *count == 0 {
                self.by_namespace.remove(&namespace);
            }
        }
    }

    /// Number of minutes between two looks at this volume, if [`LOOKS`] a minute are shared equally by namespaces.
    /// What one with few volumes leaves is shared by the others.
    fn minutes(&self, volume: &str) -> usize {
        let namespace = self.all.get(volume);
        let own = namespace.and_then(|name| self.by_namespace.get(name));
        let mut counts: Vec<_> = self.by_namespace.values().copied().collect();
        counts.sort_unstable();
        let mut looks = LOOKS;
        for (count, namespaces) in counts.iter().zip((1..=counts.len()).rev()) {
            if count.saturating_mul(namespaces) > looks {
                let own = own.copied().unwrap_or(1);
                return own.saturating_mul(namespaces).div_ceil(looks);
            }
            looks -= count;
        }
        1
    }
}

impl State {
    fn forget(&mut self, volume: &str) {
        self.all.remove(volume);
        self.unplaceable.remove(volume);
        if let Some(forgotten) = self.reconciling.get_mut(volume) {
            *forgotten = true;
        }
    }
}

/// Number of volumes without a node that are reconciled in a minute, also if no node offers more: agents do not report
/// every change that makes a node fit, and a reconciliation takes a few requests.
const LOOKS: usize = 120;

/// Pause of such a volume if there are few.
const SOON: Duration = Duration::from_secs(60);

/// Maximum pause if there are many.
const LATE: Duration = Duration::from_secs(3600);

impl Claims {
    /// Stores a claim that a watch reports. Returns when to reconcile its volume because of that, if at all. A change
    /// that this process has `written` itself is no reason.
    pub fn put(&self, volume: String, mut claim: ClaimSummary, written: bool) -> Option<Instant> {
        let mut state = self.state();
        let at = claim.look(state.all.get(&volume), written, Instant::now());
        state.all.insert(volume, claim);
        at
    }

    /// Notes that the volume is being reconciled, until [`end_reconcile`](Self::end_reconcile).
    pub fn begin_reconcile(&self, volume: &str) {
        self.state().reconciling.insert(volume.to_owned(), false);
    }

    /// Notes that the reconciliation has ended.
    pub fn end_reconcile(&self, volume: &str) {
        self.state().reconciling.remove(volume);
    }

    /// Adds the claim of a volume that is being reconciled, after a live read that may be ahead of the watch. A claim
    /// that was forgotten meanwhile is gone or needs nothing, and is not added, as no event would remove it again.
    pub fn add(&self, volume: &str, claim: &PersistentVolumeClaim) {
        let mut state = self.state();
        if state.reconciling.get(volume) == Some(&true) {
            return;
        }
        state
            .all
            .entry(volume.to_owned())
            .or_insert_with(|| ClaimSummary::of(claim));
    }

    /// Removes a claim that needs no more work.
    pub fn forget(&self, volume: &str) {
        self.state().forget(volume);
    }

    /// Removes all claims except those with these UIDs. Returns the volumes of the removed ones.
    pub fn keep(&self, uids: &HashSet<String>) -> Vec<String> {
        let mut state = self.state();
        let gone = state.all.extract_if(|_, claim| !uids.contains(&claim.uid));
        let gone: Vec<_> = gone.map(|(volume, _)| volume).collect();
        for volume in &gone {
            state.unplaceable.remove(volume);
        }
        state
            .reconciling
            .values_mut()
            .for_each(|forgotten| *forgotten = true);
        gone
    }

    /// Whether the volume's claim needs work.
    pub fn has(&self, volume: &str) -> bool {
        self.state().all.contains_key(volume)
    }

    /// Namespace and name of the volume's claim, if the claim needs work.
    pub fn place(&self, volume: &str) -> Option<(String, String)> {
        let state = self.state();
        let claim = state.all.get(volume)?;
        Some((claim.namespace.clone(), claim.name.clone()))
    }

    /// Namespaces and volumes of a class's claims.
    pub fn of_class(&self, class: &str) -> Vec<(String, String)> {
        let state = self.state();
        let claims = state.all.iter();
        let of_class = claims.filter(|(_, claim)| claim.class.as_deref() == Some(class));
        let of_class = of_class.map(|(volume, claim)| (claim.namespace.clone(), volume.clone()));
        of_class.collect()
    }

    /// Number of claims that lack something they request.
    pub fn count_waiting(&self) -> usize {
        let state = self.state();
        let waits = |(volume, claim): &(&String, &ClaimSummary)| {
            claim.is_waiting() || !claim.deleting && state.unplaceable.all.contains_key(*volume)
        };
        state.all.iter().filter(waits).count()
    }

    /// Marks a volume that fits no node, unless its claim is gone. It is reconciled when nodes offer more than now.
    pub fn mark_unplaceable(&self, volume: &str) {
        let mut state = self.state();
        let State {
            all, unplaceable, ..
        } = &mut *state;
        if let Some(claim) = all.get(volume) {
            unplaceable.insert(volume, &claim.namespace);
        }
    }

    /// Unmarks a volume: it may fit a node, or needs none.
    pub fn unmark_unplaceable(&self, volume: &str) {
        self.state().unplaceable.remove(volume);
    }

    /// Returns the pause before a volume without a node is reconciled again. Namespaces have equal shares, so that many
    /// such claims in one namespace do not delay others.
    pub fn pause(&self, volume: &str) -> Duration {
        let state = self.state();
        let minutes = state.unplaceable.minutes(volume);
        let pause = SOON.saturating_mul(u32::try_from(minutes).unwrap_or(u32::MAX));
        pause.clamp(SOON, LATE)
    }

    /// Notes that a node offers more than before.
    pub fn node_offers_more(&self) {
        self.state().offered = true;
    }

    /// Returns the volumes that fitted no node, if a node has offered more since the last call. They stay marked until
    /// their reconciliation finds otherwise.
    pub fn volumes_to_retry(&self) -> HashSet<String> {
        let mut state = self.state();
        if std::mem::take(&mut state.offered) {
            state.unplaceable.all.keys().cloned().collect()
        } else {
            HashSet::new()
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    fn claim(namespace: &str, name: &str) -> PersistentVolumeClaim {
        from_value(json!({
            "metadata": {"name": name, "namespace": namespace, "uid": name},
            "spec": {"resources": {"requests": {"storage": "1Gi"}}},
        }))
        .unwrap()
    }

    #[test]
    fn what_was_forgotten_while_it_was_looked_at_is_not_remembered_again() {
        let claims = Claims::default();
        let (gone, there) = (claim("ns", "gone"), claim("ns", "there"));
        claims.begin_reconcile("pvc-gone");
        claims.begin_reconcile("pvc-there");
        claims.forget("pvc-gone");
        claims.add("pvc-gone", &gone);
        claims.add("pvc-there", &there);
        assert!(!claims.has("pvc-gone") && claims.has("pvc-there"));
        claims.end_reconcile("pvc-gone");
        claims.begin_reconcile("pvc-gone");
        claims.add("pvc-gone", &gone);
        assert!(claims.has("pvc-gone"), "it was read anew");
        claims.begin_reconcile("pvc-late");
        claims.keep(&HashSet::new());
        claims.add("pvc-late", &gone);
        assert!(
            !claims.has("pvc-late"),
            "it is not among those that are listed"
        );
    }

    #[test]
    fn a_claim_that_no_node_can_have_waits_until_a_look_finds_one() {
        let claims = Claims::default();
        claims.put(
            "pvc-1".to_owned(),
            ClaimSummary::of(&claim("ns", "1")),
            false,
        );
        assert_eq!(claims.count_waiting(), 0, "for its first pod");
        claims.mark_unplaceable("pvc-1");
        claims.node_offers_more();
        assert_eq!(claims.volumes_to_retry().len(), 1);
        assert_eq!(claims.count_waiting(), 1, "also while it is looked at");
        claims.unmark_unplaceable("pvc-1");
        assert_eq!(claims.count_waiting(), 0);
        claims.mark_unplaceable("pvc-1");
        claims.forget("pvc-1");
        assert_eq!(claims.count_waiting(), 0);
    }

    #[test]
    fn claims_that_no_node_can_have_are_looked_at_every_minute_and_thousands_more_rarely() {
        let claims = Claims::default();
        let wait = |namespace: &str, numbers: std::ops::Range<usize>| {
            for number in numbers {
                let name = format!("{namespace}{number}");
                let seen = ClaimSummary::of(&claim(namespace, &name));
                claims.put(name.clone(), seen, false);
                claims.mark_unplaceable(&name);
            }
        };
        wait("many", 0..100);
        assert_eq!(claims.pause("many0"), SOON);
        wait("one", 0..1);
        wait("many", 100..1200);
        assert_eq!(claims.pause("one0"), SOON);
        assert_eq!(claims.pause("many0"), 11 * SOON, "119 of 1,200 in a minute");
        wait("many", 1200..10_000);
        assert_eq!(claims.pause("many0"), LATE);
        assert_eq!(claims.pause("one0"), SOON);
    }

    #[test]
    fn up_to_120_claims_that_no_node_can_have_are_looked_at_every_minute_whosever_they_are() {
        let waiting = |counts: &[usize]| {
            let claims = Claims::default();
            for (namespace, count) in counts.iter().enumerate() {
                for number in 0..*count {
                    let name = format!("{namespace}-{number}");
                    let seen = ClaimSummary::of(&claim(&format!("n{namespace}"), &name));
                    claims.put(name.clone(), seen, false);
                    claims.mark_unplaceable(&name);
                }
            }
            claims
        };
        for counts in [
            &[13, 1, 1, 1, 1, 1, 1, 1, 1, 1][..],
            &[50, 20, 50],
            &[1; 120],
        ] {
            assert_eq!(waiting(counts).pause("0-0"), SOON, "{counts:?}");
        }
        let pause = |counts: &[usize], of: &str| waiting(counts).pause(of);
        assert_eq!(pause(&[2; 61], "0-0"), 2 * SOON);
        assert_eq!(pause(&[1; 121], "0-0"), 2 * SOON);
        // The largest one has what the others leave.
        assert_eq!(pause(&[111, 5, 5], "0-0"), 2 * SOON);
        assert_eq!(pause(&[111, 5, 5], "1-0"), SOON);
        assert_eq!(pause(&[220, 5, 5], "0-0"), 2 * SOON);
        assert_eq!(pause(&[221, 5, 5], "0-0"), 3 * SOON);
    }
}
