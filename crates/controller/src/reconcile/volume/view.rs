//! State of one volume during its reconciliation: live reads and cached objects.
//!
//! Usually only the claim is read live, and persistent volume and NodeVolume come from the cache. Writes to cached
//! objects are conditioned on the cached resource version, and creations fail if the object exists. [`follows_cache`]
//! says which steps may be decided that way.

use super::{context::Context, node_health::unavailable_node};
use crate::{
    api::well_known::claim_uid,
    cache::volumes::{VolumeEntry, has_reached, parameters_checksum},
    claims::{NodeVolume, Observed, Step, StorageState, follows_cache},
    drivers::ServedDrivers,
    k8s::{claim, meta::uid},
    observe::{self, VolumeObjects},
};
use anyhow::{Context as _, Result};
use flexvol_sdk::Bytes;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, api::ObjectMeta};
use std::collections::BTreeMap;

/// State of one volume.
pub(super) struct View {
    /// Objects that were read live, or returned by a write.
    pub live: VolumeObjects,
    /// The cached rest, or `None` if everything was read live.
    cached: Option<VolumeEntry>,
}

impl View {
    /// Reads all objects live.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn read_live(context: &Context, name: &str) -> Result<View> {
        let place = context.claims.place(name);
        let told = context.index.get(name).node_volume;
        let mut live = observe::read(&context.client, name, place, &context.ours).await?;
        live.unavailable = unavailable_node(context, &live).await?;
        live.drops_allocated = context.drops_allocated();
        let node_volume = live.node_volume.as_ref();
        live.stalled = node_volume.and_then(|node_volume| context.nodes.stalls(node_volume));
        live.late = node_volume.and_then(|node_volume| context.nodes.why_late(node_volume));
        if let (None, Some(told)) = (&live.node_volume, told) {
            let told = told.metadata(name);
            context.index.node_volume_deleted(name, uid(&told));
        }
        Ok(View { live, cached: None })
    }

    /// Reads the claim live, and takes the rest from the cache. Returns `None` if that may not suffice.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn from_cache(context: &Context, name: &str) -> Result<Option<View>> {
        if context.index.may_be_others(name) || context.index.is_unread(name) {
            return Ok(None);
        }
        let entry = context.index.get(name);
        let place = match (&entry.volume, &entry.node_volume) {
            (None, None) => context.claims.place(name),
            (_, Some(node_volume)) if entry.is_own() && is_at_rest(context, &node_volume.what) => {
                entry.claim().or_else(|| context.claims.place(name))
            }
            _ => None,
        };
        let Some(place) = place else { return Ok(None) };
        let claim = observe::read_claim(&context.client, claim_uid(name), &place).await?;
        let mut live = VolumeObjects {
            drops_allocated: context.drops_allocated(),
            ..VolumeObjects::default()
        };
        live.put_claim(claim);
        // A truncated claim is reported. If the claim is gone by force, the cache may lag behind objects made for it.
        if live.claim_is_truncated || entry.is_empty() && live.claim.is_none() {
            return Ok(None);
        }
        // A volume that may be unwanted is read live.
        if let (None, Some(volume)) = (&live.claim, &entry.volume) {
            let wanted = entry.node_volume.as_ref().map(|told| told.what.desired);
            if wanted == Some(StorageState::Present) {
                let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
                live.volume = volumes.get_opt(name).await.context("read the volume")?;
                let found = live
                    .volume
                    .as_ref()
                    .and_then(|found| found.metadata.resource_version.as_ref());
                if found != Some(&volume.version) {
                    return Ok(None);
                }
            }
        }
        if let Some(class) = live.claim.as_ref().and_then(claim::class_name) {
            let (client, watches) = (&context.client, &context.metrics.watches);
            live.class = context.classes.get(client, watches, class).await?;
        }
        if entry.node_volume.is_none() {
            live.unavailable = unavailable_node(context, &live).await?;
        }
        let cached = Some(entry);
        Ok(Some(View { live, cached }))
    }

    /// Reduces the objects to what decisions need.
    pub fn observed(&self, name: &str, ours: &ServedDrivers) -> Observed {
        let cached = self.cached.as_ref();
        let told = cached.and_then(|cached| Some(cached.volume.as_ref()?.what.clone()));
        let mut observed = self.live.observed_with(told, name, ours);
        if let Some(cached) = cached {
            let node_volume = cached.node_volume.as_ref().map(|told| NodeVolume {
                outdated: self.class_differs_from(cached.parameters_checksum, ours),
                ..told.what.clone()
            });
            observed.node_volume = observed.node_volume.or(node_volume);
        }
        observed
    }

    /// Whether a step may be applied with this view, or needs a live read first.
    pub fn is_enough_for(&self, step: &Step, observed: &Observed) -> bool {
        if self.cached.is_none() {
            return true;
        }
        match step {
            // An answer to what was just ordered is still to come.
            Step::NoOp if self.live.node_volume.is_some() => true,
            // These steps need the whole object.
            Step::CreatePersistentVolume if self.live.node_volume.is_none() => false,
            Step::RemovePersistentVolumeFinalizer | Step::RequestDeletion
                if self.live.volume.is_none() =>
            {
                false
            }
            _ => follows_cache(step, observed),
        }
    }

    /// Whether a part comes from the cache.
    pub fn is_cached(&self) -> bool {
        self.cached.is_some()
    }

    /// The NodeVolume's node.
    pub fn node(&self) -> Option<&str> {
        let read = self.live.node_volume.as_ref();
        let told = || self.cached.as_ref()?.node_volume.as_ref();
        let read = read.map(|node_volume| node_volume.spec.node.as_str());
        read.or_else(|| Some(told()?.what.node.as_str()))
    }

    /// The largest size that was ordered so far.
    pub fn max_requested_size(&self) -> Option<Bytes> {
        let read = self.live.node_volume.as_ref();
        let told = || self.cached.as_ref()?.node_volume.as_ref();
        let read = read.map(|node_volume| node_volume.spec.max_requested_size());
        read.or_else(|| Some(told()?.what.max_requested_size))
    }

    /// Metadata for writes of the persistent volume.
    ///
    /// # Errors
    /// When there is none.
    pub fn volume_meta(&self, name: &str) -> Result<ObjectMeta> {
        let read = self.live.volume.as_ref();
        let read = read.map(|volume| volume.metadata.clone());
        let told = || Some(self.cached.as_ref()?.volume.as_ref()?.metadata(name));
        read.or_else(told).context("the persistent volume is gone")
    }

    /// Metadata for writes of the NodeVolume.
    ///
    /// # Errors
    /// When there is none.
    pub fn node_volume_meta(&self, name: &str) -> Result<ObjectMeta> {
        let read = self.live.node_volume.as_ref();
        let read = read.map(|node_volume| node_volume.metadata.clone());
        let told = || Some(self.cached.as_ref()?.node_volume.as_ref()?.metadata(name));
        read.or_else(told).context("the NodeVolume is gone")
    }

    /// Stores the persistent volume as a write returned it, or `None` if it is gone.
    pub fn put_volume(&mut self, volume: Option<PersistentVolume>) {
        self.live.volume = volume;
        if let Some(cached) = &mut self.cached {
            cached.volume = None;
        }
    }

    /// Stores the NodeVolume as a write returned it, or `None` if it is gone.
    pub fn put_node_volume(&mut self, node_volume: Option<crate::api::v1alpha1::NodeVolume>) {
        self.live.node_volume = node_volume;
        if let Some(cached) = &mut self.cached {
            cached.node_volume = None;
        }
    }

    /// Whether the claim's class has another driver or other parameters than the NodeVolume.
    fn class_differs_from(&self, checksum: u64, ours: &ServedDrivers) -> bool {
        let none = BTreeMap::new();
        self.live.class.as_ref().is_some_and(|class| {
            let driver = ours.driver_of(&class.provisioner).unwrap_or_default();
            parameters_checksum(driver, class.parameters.as_ref().unwrap_or(&none)) != checksum
        })
    }
}

/// Whether a node is done with a NodeVolume, by the cache. If not, live reads are needed.
fn is_at_rest(context: &Context, node_volume: &NodeVolume) -> bool {
    has_reached(node_volume)
        && node_volume.problem.is_none()
        && context.nodes.silence(&node_volume.node).is_none()
}
