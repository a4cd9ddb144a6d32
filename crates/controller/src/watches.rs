//! What the controller watches, and which of its news make it look at a volume.

use crate::{
    controller::Controller,
    log,
    names::{CLAIM_FINALIZER, volume_name},
    news::Seen,
    objects::{NodeVolume, StorageNode},
    observe::{self, handed_on, has_finalizer, is_ours, uid},
    wish,
};
use futures_util::{StreamExt, pin_mut};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{
    Api, Resource, ResourceExt,
    api::ObjectMeta,
    runtime::{WatchStreamExt, watcher, watcher::Event},
};
use serde::de::DeserializeOwned;
use std::{
    collections::HashSet,
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
        let this = Arc::clone(self);
        self.watch(move |claim: &PersistentVolumeClaim, there| this.claim_seen(claim, there));
        let this = Arc::clone(self);
        self.watch(move |volume: &PersistentVolume, there| this.volume_seen(volume, there));
        let this = Arc::clone(self);
        self.watch(move |order: &NodeVolume, there| this.order_seen(order, there));
        let this = Arc::clone(self);
        self.watch(move |class: &StorageClass, _| this.class_seen(class));
        let this = Arc::clone(self);
        self.watch(move |node: &StorageNode, there| {
            if !there {
                this.nodes.remove(&node.name_any());
            } else if this.nodes.put(node.clone()) {
                this.offered.store(true, Ordering::Relaxed);
            }
        });
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
                        self.queue.push(&name);
                    }
                }
            }
            let too_soon = looked.is_some_and(|then| then.elapsed() < OFFERS);
            if !too_soon && self.offered.swap(false, Ordering::Relaxed) {
                let mut nodeless = self.nodeless.lock().unwrap_or_else(PoisonError::into_inner);
                if !nodeless.is_empty() {
                    looked = Some(Instant::now());
                }
                for name in nodeless.drain() {
                    self.queue.push(&name);
                }
            }
        }
    }

    /// The volume is looked at when nodes offer more than now.
    pub(crate) fn wait_for_node(&self, name: &str) {
        let mut nodeless = self.nodeless.lock().unwrap_or_else(PoisonError::into_inner);
        nodeless.insert(name.to_owned());
    }

    fn watch<K>(self: &Arc<Self>, seen: impl Fn(&K, bool) + Send + 'static)
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let stream = watcher(api, watcher::Config::default()).default_backoff();
            pin_mut!(stream);
            let mut first = true;
            let mut listed = HashSet::new();
            while let Some(event) = stream.next().await {
                match event {
                    Ok(Event::Apply(object)) => seen(&object, true),
                    Ok(Event::InitApply(object)) => {
                        if !first {
                            listed.insert(uid(object.meta()).to_owned());
                        }
                        seen(&object, true);
                    }
                    Ok(Event::Delete(object)) => seen(&object, false),
                    Ok(Event::Init) => listed.clear(),
                    Ok(Event::InitDone) if std::mem::take(&mut first) => {
                        this.synced.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(Event::InitDone) => {
                        this.relisted(&K::kind(&()), &std::mem::take(&mut listed))
                    }
                    Err(error) => {
                        let (kind, error) = (K::kind(&()), error.to_string());
                        log::warn("a watch broke off", &[("of", &kind), ("error", &error)]);
                    }
                }
            }
        });
    }

    /// All objects of a kind were listed anew: what is not among them has gone, and nobody said so.
    fn relisted(&self, kind: &str, listed: &HashSet<String>) {
        let gone = match kind {
            "PersistentVolumeClaim" => {
                let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
                let gone = claims.extract_if(|_, seen| !listed.contains(&seen.uid));
                gone.map(|(name, _)| name).collect()
            }
            "PersistentVolume" => self.index.keep_volumes(listed),
            "NodeVolume" => self.index.keep_orders(listed),
            _ => Vec::new(),
        };
        for name in gone {
            self.queue.push(&name);
        }
    }

    fn claim_seen(&self, claim: &PersistentVolumeClaim, there: bool) {
        let held = has_finalizer(&claim.metadata, CLAIM_FINALIZER);
        let ours = wish::provisioner(claim).is_some_and(|name| self.ours.driver_of(name).is_some());
        let seen = Seen::of(claim);
        let name = volume_name(uid(&claim.metadata));
        let other = seen.bound_to().filter(|volume| {
            // Made for another claim, which has gone.
            !held && *volume != name && self.index.has_volume(volume)
        });
        if !ours && !held && other.is_none() {
            return;
        }
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let name = match other {
            Some(other) => {
                claims.remove(&name);
                other.to_owned()
            }
            None => name,
        };
        let fails = observe::failure(claim).is_some();
        if there && !held && seen.volume.is_some() && !observe::grows(claim) && !fails {
            claims.remove(&name);
        } else if !there || seen.volume.is_some() && seen.deleting && !held {
            claims.remove(&name);
            // Kubernetes releases the volume of one that was bound, and that is seen.
            if seen.volume.is_none() {
                self.queue.push(&name);
            }
        } else {
            let news = seen.is_news(claims.get(&name));
            claims.insert(name.clone(), seen);
            if news && !self.is_own(&claim.metadata) {
                self.queue.push(&name);
            }
        }
    }

    fn is_own(&self, meta: &ObjectMeta) -> bool {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.has(meta)
    }

    fn order_seen(&self, order: &NodeVolume, there: bool) {
        let name = order.name_any();
        let changed = self.index.order(order, there);
        let news = !there
            || changed
                && self.is_ready()
                && !self.is_own(&order.metadata)
                && (!self.index.is_settled(&name) || self.claim_place(&name).is_some());
        if news {
            self.queue.push(&name);
        }
    }

    fn volume_seen(&self, volume: &PersistentVolume, there: bool) {
        let name = volume.name_any();
        self.index.volume(volume, there, &self.ours);
        let phase = volume
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        // Until its claim has gone, the claim is what changes.
        let ends = matches!(phase, Some("Released" | "Failed"))
            || volume.metadata.deletion_timestamp.is_some();
        // Only the volume says that its claim is its own.
        let told = (ends || handed_on(volume).is_some()) && is_ours(volume, &self.ours);
        // Somebody else's may have been in the way.
        let makes_way = !there && self.claim_place(&name).is_some();
        if (told || makes_way) && !self.is_own(&volume.metadata) {
            self.queue.push(&name);
        }
    }

    /// What a class did not allow it may allow now.
    fn class_seen(&self, class: &StorageClass) {
        let name = class.name_any();
        self.classes.forget(&name);
        let claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let of_class = claims
            .iter()
            .filter(|(_, seen)| seen.class.as_ref() == Some(&name));
        for (volume, _) in of_class {
            self.queue.push(volume);
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
