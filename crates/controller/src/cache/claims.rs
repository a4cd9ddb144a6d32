//! The claims for which something is to be done, as watches have told of them, and those of them that no node can have.

use super::event_filter::ClaimSummary;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::time::Instant;

/// Claims, by the names of their volumes.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    all: HashMap<String, ClaimSummary>,
    /// Volumes that no node can have: when nodes offer more, they are looked at.
    nodeless: HashSet<String>,
    /// A node offers more than before.
    offered: bool,
}

impl State {
    fn forget(&mut self, volume: &str) {
        self.all.remove(volume);
        self.nodeless.remove(volume);
    }
}

impl Claims {
    /// The claim of a volume was seen. Says when to look at it because of that, if that is to be done; what this
    /// process has `written` itself is no reason.
    pub fn put(&self, volume: String, mut claim: ClaimSummary, written: bool) -> Option<Instant> {
        let mut state = self.state();
        let at = claim.look(state.all.get(&volume), written, Instant::now());
        state.all.insert(volume, claim);
        at
    }

    /// The claim of a volume was read, and no news may have told of it.
    pub fn add(&self, volume: &str, claim: &PersistentVolumeClaim) {
        let mut state = self.state();
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
        state
            .all
            .values()
            .filter(|claim| claim.is_waiting())
            .count()
    }

    /// No node can have the volume: it is looked at when nodes offer more than now, unless its claim has gone.
    pub fn wait_for_node(&self, volume: &str) {
        let mut state = self.state();
        if state.all.contains_key(volume) {
            state.nodeless.insert(volume.to_owned());
        }
    }

    /// A node offers more than before.
    pub fn node_offers_more(&self) {
        self.state().offered = true;
    }

    /// Takes the volumes that no node could have, if one offers more since they were taken last.
    pub fn take_nodeless(&self) -> HashSet<String> {
        let mut state = self.state();
        if std::mem::take(&mut state.offered) {
            std::mem::take(&mut state.nodeless)
        } else {
            HashSet::new()
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
