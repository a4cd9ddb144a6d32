//! Effects of steps.

use super::{NAMES, Node, NodeVolumeObject, SMALL, VolumeObject, World};
use flexvol_claims::{Answer, Published, Step, StorageState};
use flexvol_sdk::Bytes;

/// The object that a step writes. The write fails if the object has changed since it was read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Claim,
    Volume,
    NodeVolume,
}

impl World {
    /// Writes a step. The creation of a persistent volume has only the condition that there is none, so the volume is
    /// on the node of the NodeVolume that was read.
    pub(super) fn write(&mut self, step: &Step, node_read: Option<Node>) {
        // A claim that is deleted in between needs no volume any more.
        let stays =
            self.claim.as_ref().is_some_and(|claim| !claim.deleting) && self.volume.is_some();
        self.overtaken |= self.binding && stays && target(step) == Target::Claim && writes(step);
        let drops_allocated = self.setting.drops_allocated;
        let allocated = |size: &Bytes| if drops_allocated { 0 } else { size.0 };
        match step {
            Step::NoOp | Step::RecordEvent(_) | Step::Refuse(_) | Step::Blocked(_) => {}
            Step::AddClaimFinalizer | Step::RemoveClaimFinalizer => {
                if let Some(claim) = &mut self.claim {
                    // The API server rejects new finalizers on an object that is being deleted.
                    claim.held =
                        *step == Step::AddClaimFinalizer && (claim.held || !claim.deleting);
                }
            }
            Step::Reschedule => {
                if let Some(claim) = &mut self.claim {
                    claim.selected = None;
                }
            }
            Step::CreateNodeVolume { node } => {
                let fits = |node: &usize| {
                    !self.full[*node]
                        && !self.is_away(*node)
                        && !self.is_taken(*node)
                        && !self.is_stalled(*node)
                };
                let room = [0, 1].into_iter().find(fits);
                let node = node
                    .as_ref()
                    .and_then(|name| NAMES.iter().position(|known| known == name))
                    .or(room);
                if let (None, Some(node)) = (&self.node_volume, node) {
                    self.node_volume = Some(NodeVolumeObject {
                        node,
                        wanted: StorageState::Present,
                        size: SMALL,
                        most: SMALL,
                        answered: true,
                        published: Published::No,
                        recalled: false,
                        outdated: false,
                        answer: Answer::None,
                        file_system: None,
                        full: false,
                    });
                }
            }
            Step::RecreateNodeVolume { state, size, most } => {
                if let (None, Some(volume)) = (&self.node_volume, &self.volume) {
                    self.node_volume = Some(NodeVolumeObject {
                        node: volume.node,
                        wanted: *state,
                        size: size.0,
                        most: most.0,
                        answered: !self.setting.measures_again(),
                        published: Published::Seen,
                        recalled: true,
                        outdated: false,
                        answer: Answer::None,
                        file_system: None,
                        full: false,
                    });
                }
            }
            Step::CreatePersistentVolume => {
                let node = node_read.or(self
                    .node_volume
                    .as_ref()
                    .map(|node_volume| node_volume.node));
                if let (None, Some(node)) = (&self.volume, node) {
                    self.let_go = false;
                    self.volume = Some(VolumeObject {
                        node,
                        held: true,
                        deleting: false,
                        others_hold: self.setting.tenant.is_some(),
                        released: false,
                        capacity: SMALL,
                    });
                }
            }
            Step::MarkPublishing | Step::MarkPublished => {
                if let Some(node_volume) = &mut self.node_volume {
                    node_volume.published = if *step == Step::MarkPublished {
                        Published::Seen
                    } else {
                        Published::Soon.max(node_volume.published)
                    };
                }
            }
            Step::RequestDeletion => {
                if let Some(node_volume) = &mut self.node_volume {
                    node_volume.wanted = StorageState::Absent;
                }
            }
            Step::DeleteNodeVolume => self.node_volume = None,
            Step::DeletePersistentVolume => {
                if let Some(volume) = &mut self.volume {
                    volume.deleting = true;
                }
            }
            Step::RemovePersistentVolumeFinalizer => {
                if let Some(volume) = &mut self.volume {
                    volume.held = false;
                    self.let_go = true;
                }
            }
            Step::SetAllocatedResources(size) => {
                if let Some(claim) = self.claim.as_mut().filter(|_| !drops_allocated) {
                    claim.allocated = size.0;
                    claim.awaits_node = None;
                }
                self.drops_allocated = drops_allocated;
            }
            Step::RequestSize(size) => {
                if let Some(node_volume) = &mut self.node_volume {
                    node_volume.answered = !self.setting.measures_again();
                    node_volume.most = if self.setting.implausible_sizes {
                        size.0
                    } else {
                        node_volume.most.max(size.0)
                    };
                    node_volume.size = size.0;
                    node_volume.full = false;
                }
            }
            Step::SetPersistentVolumeCapacity(size) => {
                if let Some(volume) = &mut self.volume {
                    volume.capacity = size.0;
                }
            }
            Step::SetClaimCapacity(size) => {
                if let Some(claim) = &mut self.claim {
                    claim.capacity = size.0;
                    claim.allocated = allocated(size);
                    claim.awaits_node = None;
                    claim.failure = None;
                }
            }
            Step::SetFileSystemResizePending(size) => {
                if let Some(claim) = &mut self.claim {
                    claim.allocated = allocated(size);
                    claim.awaits_node = Some(size.0);
                    claim.failure = None;
                }
            }
            Step::SetResizeFailure(why) => {
                if let Some(claim) = &mut self.claim {
                    claim.failure = Some(why.clone());
                }
            }
            Step::ClearResizeFailure => {
                if let Some(claim) = &mut self.claim {
                    claim.failure = None;
                }
            }
        }
    }
}

/// Whether a step writes an object.
pub(super) fn writes(step: &Step) -> bool {
    !matches!(
        step,
        Step::NoOp | Step::RecordEvent(_) | Step::Refuse(_) | Step::Blocked(_)
    )
}

/// Whether a late write succeeds although its object was deleted and created since: the only condition of a
/// recreation is that there is no such object. First creations are not explored, because a whole life would have to
/// end meanwhile.
pub(super) fn outlives(step: &Step) -> bool {
    matches!(step, Step::RecreateNodeVolume { .. })
}

pub(super) fn target(step: &Step) -> Target {
    match step {
        Step::CreateNodeVolume { .. }
        | Step::RecreateNodeVolume { .. }
        | Step::MarkPublishing
        | Step::MarkPublished
        | Step::RequestDeletion
        | Step::DeleteNodeVolume
        | Step::RequestSize(_) => Target::NodeVolume,
        Step::CreatePersistentVolume
        | Step::DeletePersistentVolume
        | Step::RemovePersistentVolumeFinalizer
        | Step::SetPersistentVolumeCapacity(_) => Target::Volume,
        _ => Target::Claim,
    }
}
