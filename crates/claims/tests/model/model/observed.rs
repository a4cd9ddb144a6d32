//! Observations of a leader.

use super::{Absence, NAMES, Node, World, bytes};
use flexvol_claims::{
    Binding, Claim, NodeVolume, Observed, Problem, Published, Reclaim, StorageState,
    UnavailableNode, Volume, Wish,
};
use flexvol_sdk::ErrorClass;

impl World {
    /// The input of a decision.
    pub(super) fn observe(&self) -> Observed {
        let claim = self.claim.as_ref().map(|claim| Claim {
            has_finalizer: claim.held,
            wish: match claim.selected {
                _ if claim.deleting || claim.named == Some(false) || claim.is_bound() => {
                    Wish::Nothing
                }
                _ if !claim.ours => Wish::OtherProvisioner,
                _ if claim.refused => Wish::Refused("its class is gone".to_owned()),
                None if self.setting.late_binding => Wish::StorageLater,
                node => Wish::Storage {
                    node: node.map(|node| NAMES[node].to_owned()),
                },
            },
            request: bytes(claim.request),
            capacity: bytes(if claim.is_bound() {
                claim.capacity
            } else {
                claim.request
            }),
            allocated: bytes(claim.allocated),
            drops_allocated: self.drops_allocated,
            binding: match claim.named {
                None => Binding::None,
                Some(true) if claim.is_bound() => Binding::This,
                Some(true) => Binding::Named,
                Some(false) => Binding::Another,
            },
            deleting: claim.deleting,
            forbidden: (self.most() < claim.request.max(claim.capacity))
                .then(|| "its class allows less".to_owned()),
            max_size: Some(bytes(self.most())),
            file_system_resize_pending: claim.awaits_node.map(bytes),
            resize_failure: claim.failure.clone(),
        });
        let volume = self.volume.as_ref().map(|volume| Volume {
            ours: true,
            node: Some(NAMES[volume.node].to_owned()),
            has_finalizer: volume.held,
            deleting: volume.deleting,
            released: volume.released,
            reclaim: if self.setting.deletes {
                Reclaim::Delete
            } else {
                Reclaim::Retain
            },
            capacity: bytes(volume.capacity),
        });
        let node_volume = self.node_volume.as_ref().map(|node_volume| NodeVolume {
            ours: true,
            node: NAMES[node_volume.node].to_owned(),
            desired: node_volume.wanted,
            size: bytes(node_volume.size),
            max_requested_size: bytes(node_volume.most),
            rejected: None,
            answered: node_volume.answered,
            outdated: node_volume.outdated,
            published: node_volume.published,
            answer: node_volume.answer,
            problem: node_volume.full.then(|| Problem {
                class: ErrorClass::Exhausted,
                message: "no room".to_owned(),
                // Lost storage does not come back.
                is_persistent: node_volume.recalled,
            }),
            node_expansion_required: self.setting.node_expansion_required,
            file_system_size: node_volume.file_system.map(bytes),
        });
        let ordered = self
            .node_volume
            .as_ref()
            .map(|node_volume| node_volume.node);
        let node = ordered.or(self.claim.as_ref().and_then(|claim| claim.selected));
        let is_away = |node: &Node| {
            // Before storage is ordered of a node, the node's hostname is checked.
            self.is_away(*node) || self.is_taken(*node) && ordered.is_none()
        };
        let unavailable = node.filter(is_away).map(|node| UnavailableNode {
            node: NAMES[node].to_owned(),
            why: "the node is away".to_owned(),
            may_reschedule: self.is_lost(node) || self.is_taken(node),
            removed: self.away == Some(Absence::Removed),
        });
        Observed {
            claim,
            volume,
            node_volume,
            unavailable,
            unbindable: ordered
                .filter(|node| self.is_taken(*node))
                .map(|_| "another node has its hostname".to_owned()),
            stalled: self
                .node_volume
                .as_ref()
                .filter(|node_volume| {
                    self.is_stalled(node_volume.node)
                        && node_volume.wanted == StorageState::Present
                        && node_volume.published == Published::No
                })
                .map(|_| "nothing has come of it".to_owned()),
            late: None,
        }
    }
}
