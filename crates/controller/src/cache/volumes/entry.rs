//! What is known of one volume.

use crate::claims::{self, Answer, Published, Reclaim, StorageState, Volume};
use kube::api::ObjectMeta;
use std::sync::Arc;

/// Something, and the resource version that it was seen with.
#[derive(Clone, Debug)]
pub(crate) struct Versioned<T> {
    pub what: T,
    pub version: String,
    pub(super) uid: String,
}

impl<T> Versioned<T> {
    /// What is needed to write it on the condition that it is as it was seen.
    pub fn metadata(&self, name: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            uid: Some(self.uid.clone()),
            resource_version: Some(self.version.clone()),
            ..ObjectMeta::default()
        }
    }
}

/// What is known of one volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct VolumeEntry {
    pub volume: Option<Versioned<Volume>>,
    pub node_volume: Option<Versioned<claims::NodeVolume>>,
    /// A checksum of the driver and the parameters that were ordered.
    pub ordered: u64,
    /// Of its claim.
    pub(super) namespace: Arc<str>,
    /// The name of the claim that it is named after, unless its volume is another claim's. Of one that has a volume
    /// and keeps it the name is not remembered, and it is empty.
    pub(super) claim: Option<Box<str>>,
}

impl VolumeEntry {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.volume.is_none() && self.node_volume.is_none()
    }

    /// Whether its volume, if it has one, is for the claim that it is named after.
    pub fn is_own(&self) -> bool {
        self.claim.is_some()
    }

    /// Namespace and name of the claim that it is named after, unless that has the volume and keeps it.
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

    /// Nobody asks anything of it any more, and it says `Retain`.
    pub(super) fn is_kept(&self) -> bool {
        let volume = self.volume.as_ref().map(|seen| &seen.what);
        volume.is_some_and(|volume| {
            volume.released && !volume.deleting && volume.reclaim == Reclaim::Retain
        })
    }
}

/// Whether the storage is as it is ordered, as its node has said at any time.
pub(crate) fn has_reached(node_volume: &claims::NodeVolume) -> bool {
    match (node_volume.desired, node_volume.answer) {
        (StorageState::Present, Answer::Present(size)) => {
            size.is_none_or(|size| size >= node_volume.size)
        }
        (StorageState::Absent, Answer::Absent) => true,
        _ => false,
    }
}
