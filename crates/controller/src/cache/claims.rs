//! The claims for which something is to be done, as watches have told of them, and those of them that no node can have.

use super::event_filter::ClaimSummary;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Claims, by the names of their volumes.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    all: HashMap<String, ClaimSummary>,
    /// Volumes that no node can have, as was found when they were looked at last: when nodes offer more, they are
    /// looked at.
    nodeless: Nodeless,
    /// A node offers more than before.
    offered: bool,
    /// The volumes that are being looked at, and whether their claims were forgotten meanwhile.
    looked_at: HashMap<String, bool>,
}

/// Volumes, and the namespaces of their claims.
#[derive(Debug, Default)]
struct Nodeless {
    all: HashMap<String, String>,
    by_namespace: HashMap<String, usize>,
}

impl Nodeless {
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

    /// How many there would be, if all namespaces had as many as that of this one has.
    fn share(&self, volume: &str) -> usize {
        let namespace = self.all.get(volume);
        let own = namespace.and_then(|name| self.by_namespace.get(name));
        own.map_or(1, |own| own.saturating_mul(self.by_namespace.len()))
    }
}

impl State {
    fn forget(&mut self, volume: &str) {
        self.all.remove(volume);
        self.nodeless.remove(volume);
        if let Some(forgotten) = self.looked_at.get_mut(volume) {
            *forgotten = true;
        }
    }
}

/// So many volumes that no node could have are looked at in a minute, whether or not nodes offer more: not all that
/// makes a node fit again is told by its agent, and a look is a few requests.
const LOOKS: usize = 120;

/// How soon one of them is looked at, if there are few.
const SOON: Duration = Duration::from_secs(60);

/// And if there are many.
const LATE: Duration = Duration::from_secs(3600);

impl Claims {
    /// The claim of a volume was seen. Says when to look at it because of that, if that is to be done; what this
    /// process has `written` itself is no reason.
    pub fn put(&self, volume: String, mut claim: ClaimSummary, written: bool) -> Option<Instant> {
        let mut state = self.state();
        let at = claim.look(state.all.get(&volume), written, Instant::now());
        state.all.insert(volume, claim);
        at
    }

    /// A volume is looked at from now on, until [`looked_at`](Self::looked_at).
    pub fn looks_at(&self, volume: &str) {
        self.state().looked_at.insert(volume.to_owned(), false);
    }

    /// That has ended.
    pub fn looked_at(&self, volume: &str) {
        self.state().looked_at.remove(volume);
    }

    /// The claim of a volume that is being looked at was read, and no news may have told of it. What was forgotten
    /// since has gone, or needs nothing: of that no news would tell again.
    pub fn add(&self, volume: &str, claim: &PersistentVolumeClaim) {
        let mut state = self.state();
        if state.looked_at.get(volume) == Some(&true) {
            return;
        }
        state
            .all
            .entry(volume.to_owned())
            .or_insert_with(|| ClaimSummary::of(claim));
    }

    /// Nothing of a claim is to be done any more.
    pub fn forget(&self, volume: &str) {
        self.state().forget(volume);
    }

    /// Forgets all claims but those with these UIDs, and says which volumes they are of.
    pub fn keep(&self, uids: &HashSet<String>) -> Vec<String> {
        let mut state = self.state();
        let gone = state.all.extract_if(|_, claim| !uids.contains(&claim.uid));
        let gone: Vec<_> = gone.map(|(volume, _)| volume).collect();
        for volume in &gone {
            state.nodeless.remove(volume);
        }
        state
            .looked_at
            .values_mut()
            .for_each(|forgotten| *forgotten = true);
        gone
    }

    /// Whether something is to be done for the claim of a volume.
    pub fn has(&self, volume: &str) -> bool {
        self.state().all.contains_key(volume)
    }

    /// Namespace and name of the claim of a volume, if something is to be done for it.
    pub fn place(&self, volume: &str) -> Option<(String, String)> {
        let state = self.state();
        let claim = state.all.get(volume)?;
        Some((claim.namespace.clone(), claim.name.clone()))
    }

    /// The namespaces and the volumes of the claims of a class.
    pub fn of_class(&self, class: &str) -> Vec<(String, String)> {
        let state = self.state();
        let claims = state.all.iter();
        let of_class = claims.filter(|(_, claim)| claim.class.as_deref() == Some(class));
        let of_class = of_class.map(|(volume, claim)| (claim.namespace.clone(), volume.clone()));
        of_class.collect()
    }

    /// How many claims have not got what they ask for.
    pub fn count_waiting(&self) -> usize {
        let state = self.state();
        let waits = |(volume, claim): &(&String, &ClaimSummary)| {
            claim.is_waiting() || !claim.deleting && state.nodeless.all.contains_key(*volume)
        };
        state.all.iter().filter(waits).count()
    }

    /// No node can have the volume: it waits, and is looked at when nodes offer more than now, unless its claim has gone.
    pub fn wait_for_node(&self, volume: &str) {
        let mut state = self.state();
        let State { all, nodeless, .. } = &mut *state;
        if let Some(claim) = all.get(volume) {
            nodeless.insert(volume, &claim.namespace);
        }
    }

    /// A node may have the volume, or none is asked for.
    pub fn waits_for_no_node(&self, volume: &str) {
        self.state().nodeless.remove(volume);
    }

    /// How soon a volume that no node can have is looked at without any news. Namespaces have equal shares of the
    /// looks, so who has many such claims keeps no other waiting.
    pub fn pause(&self, volume: &str) -> Duration {
        let state = self.state();
        let minutes = state.nodeless.share(volume).div_ceil(LOOKS);
        let pause = SOON.saturating_mul(u32::try_from(minutes).unwrap_or(u32::MAX));
        pause.clamp(SOON, LATE)
    }

    /// A node offers more than before.
    pub fn node_offers_more(&self) {
        self.state().offered = true;
    }

    /// The volumes that no node could have, if one offers more since this was asked last. They wait until another
    /// look finds otherwise.
    pub fn nodeless(&self) -> HashSet<String> {
        let mut state = self.state();
        if std::mem::take(&mut state.offered) {
            state.nodeless.all.keys().cloned().collect()
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
        claims.looks_at("pvc-gone");
        claims.looks_at("pvc-there");
        claims.forget("pvc-gone");
        claims.add("pvc-gone", &gone);
        claims.add("pvc-there", &there);
        assert!(!claims.has("pvc-gone") && claims.has("pvc-there"));
        claims.looked_at("pvc-gone");
        claims.looks_at("pvc-gone");
        claims.add("pvc-gone", &gone);
        assert!(claims.has("pvc-gone"), "it was read anew");
        claims.looks_at("pvc-late");
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
        claims.wait_for_node("pvc-1");
        claims.node_offers_more();
        assert_eq!(claims.nodeless().len(), 1);
        assert_eq!(claims.count_waiting(), 1, "also while it is looked at");
        claims.waits_for_no_node("pvc-1");
        assert_eq!(claims.count_waiting(), 0);
        claims.wait_for_node("pvc-1");
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
                claims.wait_for_node(&name);
            }
        };
        wait("many", 0..100);
        assert_eq!(claims.pause("many0"), SOON);
        wait("one", 0..1);
        wait("many", 100..1200);
        assert_eq!(claims.pause("one0"), SOON);
        assert_eq!(claims.pause("many0"), 20 * SOON);
        wait("many", 1200..10_000);
        assert_eq!(claims.pause("many0"), LATE);
        assert_eq!(claims.pause("one0"), SOON);
    }
}
