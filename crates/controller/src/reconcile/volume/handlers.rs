//! What the controller watches, and which of its news make it look at a volume.

#[cfg(test)]
mod tests;

use crate::{
    api::{
        labels::{CLAIM_FINALIZER, volume_name},
        v1alpha1::{NodeVolume, StorageNode},
    },
    cache::news::Seen,
    k8s::{
        claim,
        meta::{has_finalizer, uid},
        volume::{self, handed_on, is_ours, lost_its_claim},
    },
    reconcile::volume::Controller,
    runtime::reflector::{Event, Presence, reflect},
    support::log,
};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{Api, Resource, ResourceExt, api::ObjectMeta, runtime::watcher};
use serde::de::DeserializeOwned;
use std::{
    collections::{HashMap, HashSet},
    fmt::Debug,
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// How many watches there are.
pub(crate) const WATCHES: u8 = 5;

/// How often it is looked whether nodes have fallen silent.
const LOOK: Duration = Duration::from_secs(2);

/// Volumes that no node could have are looked at no more often than this because nodes offer more.
const OFFERS: Duration = Duration::from_secs(60);

impl Controller {
    pub(crate) fn watch_all(self: &Arc<Self>) {
        self.nodes.listen();
        let this = Arc::clone(self);
        self.watch(
            move |claim: &PersistentVolumeClaim, presence| this.claim_seen(claim, presence),
            Self::keep_claims,
        );
        let this = Arc::clone(self);
        self.watch(
            move |volume: &PersistentVolume, presence| this.volume_seen(volume, presence),
            |this, listed| this.index.keep_volumes(listed),
        );
        let this = Arc::clone(self);
        self.watch(
            move |order: &NodeVolume, presence| this.order_seen(order, presence),
            |this, listed| {
                let gone = this.index.keep_orders(listed);
                this.nodes.orders_gone(gone.iter().map(String::as_str));
                gone
            },
        );
        // Of a class nothing is remembered that is not read again.
        let this = Arc::clone(self);
        self.watch(
            move |class: &StorageClass, presence| this.class_seen(class, presence),
            |_, _| Vec::new(),
        );
        // A node that has gone is silent, and then it is looked whether it is there.
        let this = Arc::clone(self);
        self.watch(
            move |node: &StorageNode, presence| this.node_seen(node, presence),
            |_, _| Vec::new(),
        );
    }

    /// Looks at the volumes of nodes that fall silent, and, when nodes offer more, at volumes that no
    /// node could have.
    pub(crate) async fn watch_nodes(&self) {
        let mut looked: Option<Instant> = None;
        loop {
            sleep(LOOK).await;
            for node in self.nodes.fell_silent() {
                log::warn("a node's agent is silent", &[("node", &node)]);
                for name in self.index.of_node(&node) {
                    if !self.index.is_settled(&name) || self.claim_place(&name).is_some() {
                        self.look_at(&name);
                    }
                }
            }
            for name in self.nodes.stalled() {
                self.look_at(&name);
            }
            let too_soon = looked.is_some_and(|then| then.elapsed() < OFFERS);
            if !too_soon && self.offered.swap(false, Ordering::Relaxed) {
                let nodeless = {
                    let mut all = self.nodeless.lock().unwrap_or_else(PoisonError::into_inner);
                    std::mem::take(&mut *all)
                };
                if !nodeless.is_empty() {
                    looked = Some(Instant::now());
                }
                for name in nodeless {
                    self.look_at(&name);
                }
            }
        }
    }

    /// The volume is looked at when nodes offer more than now, unless its claim has gone.
    pub(crate) fn wait_for_node(&self, name: &str) {
        let claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        if claims.contains_key(name) {
            let mut nodeless = self.nodeless.lock().unwrap_or_else(PoisonError::into_inner);
            nodeless.insert(name.to_owned());
        }
    }

    /// Something about a volume has changed. Namespaces take turns.
    pub(crate) fn look_at(&self, name: &str) {
        let of_claim = self.claim_place(name).map(|(namespace, _)| namespace);
        let owner = of_claim.unwrap_or_else(|| self.index.namespace(name).to_string());
        self.queue.push(&owner, name);
    }

    /// Nothing of a claim is to be done any more.
    fn forget_claim(&self, claims: &mut HashMap<String, Seen>, name: &str) {
        claims.remove(name);
        let mut nodeless = self.nodeless.lock().unwrap_or_else(PoisonError::into_inner);
        nodeless.remove(name);
    }

    /// Watches all objects of a kind. When they were listed anew, `keep` forgets all but those with these
    /// UIDs, and says which volumes they are of.
    fn watch<K>(
        self: &Arc<Self>,
        seen: impl Fn(&K, Presence) + Send + 'static,
        keep: fn(&Self, &HashSet<String>) -> Vec<String>,
    ) where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let mut first = true;
            let handle = move |event| match event {
                Event::ListBegins => {}
                Event::Object(object, presence) => seen(&object, presence),
                Event::Listed(listed) => {
                    // What is not among them has gone, and nobody said so.
                    let gone = listed.map(|listed| keep(&this, &listed));
                    for name in gone.into_iter().flatten() {
                        this.look_at(&name);
                    }
                    if std::mem::take(&mut first) {
                        this.synced.fetch_add(1, Ordering::Relaxed);
                    }
                }
            };
            reflect(api, watcher::Config::default(), handle).await;
        });
    }

    /// Forgets all claims but those with these UIDs, and says which volumes they are of.
    fn keep_claims(&self, uids: &HashSet<String>) -> Vec<String> {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = claims.extract_if(|_, seen| !uids.contains(&seen.uid));
        let gone: Vec<_> = gone.map(|(name, _)| name).collect();
        let mut nodeless = self.nodeless.lock().unwrap_or_else(PoisonError::into_inner);
        for name in &gone {
            nodeless.remove(name);
        }
        gone
    }

    fn claim_seen(&self, claim: &PersistentVolumeClaim, presence: Presence) {
        let there = presence == Presence::There;
        let held = has_finalizer(&claim.metadata, CLAIM_FINALIZER);
        let mut seen = Seen::of(claim);
        let name = volume_name(uid(&claim.metadata));
        let ours = match claim::provisioner(claim) {
            Some(provisioner) => self.ours.driver_of(provisioner).is_some(),
            // Whoever replaces a claim may leave it out. Its volume may not have been listed yet.
            None => seen.bound_to() == Some(&name),
        };
        let other = seen.bound_to().filter(|volume| {
            // Made for another claim, which has gone.
            !held && *volume != name && self.index.has_volume(volume)
        });
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        // Its author may have taken away what says that it is ours, before a watch told of its order.
        let known = claims.contains_key(&name) || self.index.has_order(&name);
        if !ours && !held && !known && other.is_none() {
            return;
        }
        let name = match other {
            Some(other) => {
                let other = other.to_owned();
                self.forget_claim(&mut claims, &name);
                other
            }
            None => name,
        };
        let fails = claim::failure(claim).is_some();
        let is_bound = seen.bound_to().is_some();
        if there && !held && is_bound && !claim::grows(claim) && !fails {
            self.forget_claim(&mut claims, &name);
        } else if !there || seen.volume.is_some() && seen.deleting && !held {
            self.forget_claim(&mut claims, &name);
            // Of one that was bound Kubernetes releases the volume, and that is seen.
            if !is_bound {
                self.queue.push(&seen.namespace, &name);
            }
        } else {
            let own = self.is_own(&claim.metadata);
            if let Some(at) = seen.look(claims.get(&name), own, Instant::now()) {
                self.queue.push_by(&seen.namespace, &name, at);
            }
            claims.insert(name, seen);
        }
    }

    fn is_own(&self, meta: &ObjectMeta) -> bool {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.has(meta)
    }

    fn node_seen(&self, node: &StorageNode, presence: Presence) {
        match presence {
            Presence::Gone => self.nodes.remove(&node.name_any()),
            Presence::There => {
                if self.nodes.put(node.clone()) {
                    self.offered.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    fn order_seen(&self, order: &NodeVolume, presence: Presence) {
        let name = order.name_any();
        let changed = self.index.order(order, presence, &self.ours);
        match presence {
            Presence::There => self.nodes.order_seen(order),
            Presence::Gone => self.nodes.orders_gone([&*name].into_iter()),
        }
        let news = presence == Presence::Gone
            || changed
                && self.is_ready()
                && !self.is_own(&order.metadata)
                && (!self.index.is_settled(&name) || self.claim_place(&name).is_some());
        if news {
            self.queue.push(&order.spec.claim.namespace, &name);
        }
    }

    fn volume_seen(&self, volume: &PersistentVolume, presence: Presence) {
        let name = volume.name_any();
        let was_ours = self.index.has_volume(&name);
        self.index.volume(volume, presence, &self.ours);
        // Until its claim has gone, the claim is what changes.
        let ends = lost_its_claim(volume) || volume.metadata.deletion_timestamp.is_some();
        // Only the volume says that its claim is its own.
        let told = (ends || handed_on(volume).is_some()) && is_ours(volume, &self.ours);
        // Somebody else's may have been in the way, and is gone or ours by now.
        let becomes_ours = self.is_ready() && !was_ours && is_ours(volume, &self.ours);
        let makes_way =
            (presence == Presence::Gone || becomes_ours) && self.claim_place(&name).is_some();
        if (told || makes_way) && !self.is_own(&volume.metadata) {
            let claim = volume::holder(volume);
            let namespace = claim.and_then(|claim| claim.namespace.as_deref());
            self.queue.push(namespace.unwrap_or_default(), &name);
        }
    }

    /// What a class did not allow it may allow now.
    fn class_seen(&self, class: &StorageClass, presence: Presence) {
        let name = class.name_any();
        match presence {
            Presence::There => self.nodes.class_seen(&name, uid(&class.metadata)),
            Presence::Gone => self.nodes.class_gone(&name),
        }
        self.classes.forget(&name);
        let claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let of_class = claims
            .iter()
            .filter(|(_, seen)| seen.class.as_ref() == Some(&name));
        for (volume, seen) in of_class {
            self.queue.push(&seen.namespace, volume);
        }
    }

    /// A claim that asks for more was found by its volume, and no news told of it.
    pub(crate) fn claim_grows(&self, volume: &str, claim: &PersistentVolumeClaim) {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims
            .entry(volume.to_owned())
            .or_insert_with(|| Seen::of(claim));
    }

    /// How many claims have not got what they ask for.
    pub(crate) fn claims_waiting(&self) -> usize {
        let claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.values().filter(|seen| seen.is_waiting()).count()
    }

    /// Where the claim of a volume that is not settled was seen.
    pub(crate) fn claim_place(&self, name: &str) -> Option<(String, String)> {
        let claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = claims.get(name)?;
        Some((seen.namespace.clone(), seen.name.clone()))
    }
}
