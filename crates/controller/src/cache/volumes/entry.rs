//! Cache entry of one volume.

use crate::claims::{self, Answer, NodeVolume, Published, Reclaim, StorageState, Volume};
use kube::api::ObjectMeta;
use std::sync::Arc;

/// A reduced object with the resource version at which it was seen.
#[derive(Clone, Debug)]
pub(crate) struct Versioned<T> {
    pub what: T,
    pub version: String,
    pub(super) uid: String,
}

impl<T> Versioned<T> {
    /// Returns the metadata for a write that is conditioned on this version.
    pub fn metadata(&self, name: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            uid: Some(self.uid.clone()),
            resource_version: Some(self.version.clone()),
            ..ObjectMeta::default()
        }
    }
}

/// Cached state of one volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct VolumeEntry {
    pub volume: Option<Versioned<Volume>>,
    pub node_volume: Option<Versioned<claims::NodeVolume>>,
    /// Checksum of the driver and the parameters in the NodeVolume.
    pub parameters_checksum: u64,
    /// The claim's namespace.
    pub(super) namespace: Arc<str>,
    /// The name of the claim after which the volume is named, unless its volume is another claim's. The name is
    /// dropped, and empty, while the claim simply has the volume.
    pub(super) claim: Option<Box<str>>,
}

impl VolumeEntry {
    /// Whether the entry is empty.
    pub fn is_empty(&self) -> bool {
        self.volume.is_none() && self.node_volume.is_none()
    }

    /// Whether the persistent volume, if any, is for the claim after which it is named.
    pub fn is_own(&self) -> bool {
        self.claim.is_some()
    }

    /// Namespace and name of that claim, unless the name was dropped.
    pub fn claim(&self) -> Option<(String, String)> {
        let name = self.claim.as_deref().filter(|name| !name.is_empty())?;
        Some((self.namespace.to_string(), name.to_owned()))
    }

    pub(super) fn belongs_to(&mut self, namespace: Option<Arc<str>>) {
        if let Some(namespace) = namespace {
            self.namespace = namespace;
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        let (Some(volume), Some(node_volume)) = (&self.volume, &self.node_volume) else {
            return false;
        };
        let (volume, node_volume) = (&volume.what, &node_volume.what);
        let stays =
            node_volume.desired == StorageState::Present && !volume.released && !volume.deleting;
        let is_there = has_reached(node_volume) && !volume.is_elsewhere(node_volume);
        is_there
            && stays
            && node_volume.published == Published::Seen
            && node_volume.problem.is_none()
    }

    /// Whether the volume needs work, except what its claim may request.
    pub(super) fn needs_work(&self) -> bool {
        match (&self.volume, &self.node_volume) {
            // Only a released volume, or one that another provisioner made, has no NodeVolume. This one is lost.
            (Some(volume), None) => !volume.what.released && volume.what.node.is_some(),
            (_, node_volume) => node_volume.is_some() && !self.is_settled(),
        }
    }

    /// The state of the volume for which there is this NodeVolume.
    pub(super) fn state(&self, node_volume: &NodeVolume) -> VolumeState {
        let volume = self.volume.as_ref().map(|seen| &seen.what);
        let goes = volume.is_some_and(|volume| volume.released || volume.deleting);
        if self.is_kept() {
            VolumeState::Kept
        } else if goes || node_volume.desired == StorageState::Absent {
            VolumeState::Deleting
        } else if self.is_settled() {
            VolumeState::Settled
        } else if node_volume.published < Published::Seen {
            VolumeState::Creating
        } else if matches!(node_volume.answer, Answer::Present(_)) && !has_reached(node_volume) {
            VolumeState::Growing
        } else {
            VolumeState::Unsettled
        }
    }

    /// Whether the volume is released and its reclaim policy is `Retain`.
    fn is_kept(&self) -> bool {
        let volume = self.volume.as_ref().map(|seen| &seen.what);
        volume.is_some_and(|volume| {
            volume.released && !volume.deleting && volume.reclaim == Reclaim::Retain
        })
    }
}

/// State of a volume, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum VolumeState {
    /// Its storage or its persistent volume is being created.
    Creating,
    /// Its storage is smaller than requested.
    Growing,
    /// Nothing has to be done for it.
    Settled,
    /// Its storage is being deleted.
    Deleting,
    /// It is released and retained.
    Kept,
    /// Anything else: its storage or its persistent volume is lost, or is elsewhere, or its node has not answered yet.
    Unsettled,
}

impl VolumeState {
    pub const ALL: [VolumeState; 6] = [
        VolumeState::Creating,
        VolumeState::Growing,
        VolumeState::Settled,
        VolumeState::Deleting,
        VolumeState::Kept,
        VolumeState::Unsettled,
    ];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            VolumeState::Creating => "creating",
            VolumeState::Growing => "growing",
            VolumeState::Settled => "settled",
            VolumeState::Deleting => "deleting",
            VolumeState::Kept => "kept",
            VolumeState::Unsettled => "unsettled",
        }
    }
}

/// Whether the storage is as requested, by any answer of its node so far.
pub(crate) fn has_reached(node_volume: &claims::NodeVolume) -> bool {
    match (node_volume.desired, node_volume.answer) {
        (StorageState::Present, Answer::Present(size)) => {
            size.is_none_or(|size| size >= node_volume.size)
        }
        (StorageState::Absent, Answer::Absent) => true,
        _ => false,
    }
}
