//! Actions of Kubernetes and the nodes.

use super::{Actor, ClaimObject, HUGE, Node, Phase, World, bytes, writes};
use flexvol_claims::{Answer, Published, StorageState, decide};

impl World {
    pub(super) fn scheduler(&self, node: Node) -> Option<World> {
        let claim = self.claim.as_ref()?;
        let waits = self.setting.late_binding
            && claim.selected.is_none()
            && claim.named.is_none()
            && !claim.deleting
            && !self.is_lost(node);
        waits.then(|| {
            let mut next = self.clone();
            next.claim.as_mut().unwrap().selected = Some(node);
            next
        })
    }

    /// The next action of an actor without interference, or `None` at rest.
    pub fn goes_on(&self, actor: Actor) -> Option<World> {
        let mut next = self.clone();
        match actor {
            Actor::Leader => {
                let step = decide(&self.observe());
                if !writes(&step) {
                    return None;
                }
                next.write(&step, None);
                if next == *self {
                    return None;
                }
            }
            Actor::Node => {
                next = match self.working {
                    Some(_) => self.driver_ends(true)?,
                    None => self.node_reads()?,
                };
            }
            Actor::Scheduler => {
                let all = [0, 1];
                let fits = |node: &Node| {
                    !self.full[*node]
                        && !self.is_lost(*node)
                        && !self.is_taken(*node)
                        && !self.is_stalled(*node)
                };
                next = self.scheduler(all.into_iter().find(fits).unwrap_or(0))?;
            }
            Actor::Binder => {
                next = self.binds()?;
            }
            Actor::Other => {
                let volume = next.volume.as_mut()?;
                if !volume.deleting || !volume.others_hold {
                    return None;
                }
                volume.others_hold = false;
            }
            Actor::Expander => {
                let (claim, volume) = (self.claim.as_ref()?, self.volume.as_ref()?);
                let pending = self.setting.expander
                    && claim.is_bound()
                    && claim.request > claim.capacity
                    && (volume.capacity < claim.request || claim.awaits_node.is_none());
                if !pending {
                    return None;
                }
                // It goes on with what was allocated.
                let request = claim.request.max(claim.allocated);
                let volume = next.volume.as_mut()?;
                volume.capacity = volume.capacity.max(request);
                // Kubernetes' expander drops the outcome of a former growth.
                let claim = next.claim.as_mut()?;
                claim.awaits_node = Some(request);
                if !self.setting.drops_allocated {
                    claim.allocated = request;
                }
                claim.failure = None;
            }
            Actor::Kubelet => {
                let (claim, volume) = (self.claim.as_ref()?, self.volume.as_ref()?);
                let size = claim.awaits_node?;
                let grows = self.setting.node_expansion_required
                    && claim.is_bound()
                    && volume.capacity > claim.capacity;
                // The driver's `expandfs` grows storage and file system, or fails.
                let has = self.storage[volume.node]?;
                if !grows || self.is_lost(volume.node) {
                    return None;
                }
                let claim = next.claim.as_mut()?;
                claim.awaits_node = None;
                if has < size && self.full[volume.node] {
                    // It retries a requested size for ever, and gives up one that is not requested any more.
                    return (claim.request != size).then_some(next);
                }
                next.storage[volume.node] = Some(has.max(size));
                next.file_system = has.max(size);
                claim.capacity = size;
                // Before Kubernetes 1.31, kubelet keeps the condition about the storage.
            }
        }
        self.forget_overtaken(&mut next);
        next.binding |= actor == Actor::Binder && self.has_named(&next);
        next.tidy();
        (next != *self).then_some(next)
    }

    /// Kubernetes' binder (`syncUnboundClaim`, `syncBoundClaim` and `syncVolume` in
    /// pkg/controller/volume/persistentvolume/pv_controller.go). It writes the name and the annotation into a claim,
    /// and then the claim's status, unless another writer has changed the claim in between.
    fn binds(&self) -> Option<World> {
        let mut next = self.clone();
        let Some(claim) = &self.claim else {
            return self.releases();
        };
        if self.setting.tenant.is_some() && !claim.ours && claim.named.is_none() && !claim.deleting
        {
            next.claim.as_mut()?.ours = true;
            return Some(next);
        }
        let volume = self.volume.as_ref();
        match (claim.named, claim.completed, volume) {
            (Some(false), ..) => return self.releases(),
            (None, _, Some(volume)) => {
                if claim.deleting || volume.released || volume.deleting {
                    return None;
                }
                let claim = next.claim.as_mut()?;
                (claim.named, claim.completed) = (Some(true), true);
            }
            (Some(true), false, Some(_)) if !claim.deleting => {
                next.claim.as_mut()?.completed = true;
            }
            (Some(true), true, Some(volume)) if claim.phase != Phase::Bound => {
                if self.binding {
                    let capacity = volume.capacity;
                    let claim = next.claim.as_mut()?;
                    (claim.phase, claim.capacity) = (Phase::Bound, capacity);
                } else {
                    next.binding = true;
                }
            }
            (Some(true), true, None) if claim.phase != Phase::Lost => {
                next.claim.as_mut()?.phase = Phase::Lost;
            }
            _ => return None,
        }
        Some(next)
    }

    /// Releases the volume: its claim is gone, or has another volume.
    fn releases(&self) -> Option<World> {
        let mut next = self.clone();
        next.volume.as_mut()?.released = true;
        Some(next)
    }

    /// Whether the binder has written the name into the claim, and writes its status next.
    fn has_named(&self, next: &World) -> bool {
        let completed = |world: &World| world.claim.as_ref().map(|claim| claim.completed);
        next.claim
            .as_ref()
            .is_some_and(|claim| claim.phase != Phase::Bound)
            && (next.binding || completed(self) == Some(false) && completed(next) == Some(true))
            && next.volume.is_some()
    }

    pub(super) fn node_reads(&self) -> Option<World> {
        let node_volume = self.node_volume.as_ref()?;
        if self.working.is_some() || self.is_away(node_volume.node) {
            return None;
        }
        let done = match (node_volume.wanted, node_volume.answer) {
            (StorageState::Absent, Answer::Absent) => true,
            (StorageState::Present, _)
                if self.is_stalled(node_volume.node) && node_volume.published == Published::No =>
            {
                true
            }
            (StorageState::Present, Answer::Present(size)) => size.is_none_or(|size| {
                let is_plausible = size.0 >= node_volume.most && size.0 != HUGE;
                let is_measured = node_volume.answered && !node_volume.full || is_plausible;
                size.0 >= node_volume.size && is_measured
            }),
            // Lost storage of a recreated NodeVolume is never provisioned again: the driver fails to find it.
            (StorageState::Present, Answer::None) => {
                let is_lost = self.storage[node_volume.node].is_none();
                node_volume.recalled && node_volume.full && is_lost
            }
            _ => false,
        };
        // The node reads volume and claim live before it deletes anything.
        let allowed = node_volume.wanted == StorageState::Present
            || match &self.volume {
                None => self.unused(),
                Some(volume)
                    if volume.node != node_volume.node
                        && node_volume.published < Published::Seen =>
                {
                    true
                }
                Some(volume) => {
                    let may_get_it = self.claim.as_ref().is_some_and(|claim| match claim.named {
                        None => !volume.deleting,
                        Some(named) => named,
                    });
                    let ends = volume.released || volume.deleting;
                    self.setting.deletes && ends && self.unused() && !may_get_it
                }
            };
        (!done && allowed).then(|| {
            let mut next = self.clone();
            next.working = Some((
                node_volume.node,
                node_volume.wanted,
                node_volume.size,
                node_volume.recalled,
            ));
            next
        })
    }

    pub(super) fn unused(&self) -> bool {
        self.claim.as_ref().is_none_or(|claim| !claim.is_bound())
    }

    /// The driver ends, and the agent writes its finding, unless it is cut off. If the NodeVolume has another size by
    /// now, the agent writes only what was reached.
    pub(super) fn driver_ends(&self, writes: bool) -> Option<World> {
        let (node, wanted, size, recalled) = self.working?;
        let mut next = self.clone();
        next.working = None;
        let is_unmeasured = self
            .node_volume
            .as_ref()
            .is_none_or(|node_volume| node_volume.answer == Answer::None);
        let (answer, full) = match (wanted, self.storage[node]) {
            (StorageState::Absent, _) => {
                next.storage[node] = None;
                (Answer::Absent, false)
            }
            (StorageState::Present, Some(has)) if has >= size => (self.tells(has), false),
            (StorageState::Present, None) if recalled => (Answer::None, true),
            // No failed call tells a size, so that of storage that was never measured stays unknown.
            (StorageState::Present, _) if recalled && self.full[node] && is_unmeasured => {
                (Answer::None, true)
            }
            (StorageState::Present, has) if self.full[node] => {
                (has.map_or(Answer::None, |has| self.tells(has)), true)
            }
            (StorageState::Present, _) => {
                next.storage[node] = Some(size);
                (self.tells(size), false)
            }
        };
        let node_volume = next.node_volume.as_mut();
        if writes
            && let Some(node_volume) = node_volume
            && (node_volume.node, node_volume.wanted, node_volume.recalled)
                == (node, wanted, recalled)
            && (node_volume.size == size || !full)
        {
            node_volume.answer = answer;
            node_volume.full = full;
            node_volume.answered |= node_volume.size == size;
        }
        Some(next)
    }

    /// After the storage of a mounted volume has grown, the agent has its file system grown too.
    pub(super) fn agent_grows(&self) -> Option<World> {
        let (node, wanted, ..) = self.working?;
        let is_mounted = self.setting.node_expansion_required
            && !self.setting.sizeless
            && wanted == StorageState::Present
            && self.claim.as_ref().is_some_and(ClaimObject::is_bound)
            && self
                .volume
                .as_ref()
                .is_some_and(|volume| volume.node == node);
        let mut next = self.driver_ends(true).filter(|_| is_mounted)?;
        let has = next.storage[node]?;
        next.file_system = has;
        let node_volume = next.node_volume.as_mut()?;
        // A file system's size is reported only with a size of the storage.
        node_volume.file_system = (node_volume.answer == Answer::Present(Some(bytes(has))))
            .then_some(has)
            .or(node_volume.file_system);
        Some(next)
    }

    /// The node reports arbitrary sizes of existing storage.
    pub(super) fn implausible_sizes(&self) -> Option<World> {
        let mut next = self.clone();
        let node_volume = next
            .node_volume
            .as_mut()
            .filter(|_| self.setting.implausible_sizes)?;
        let is_there =
            self.storage[node_volume.node].is_some() && node_volume.wanted == StorageState::Present;
        node_volume.answer = Answer::Present(Some(bytes(HUGE)));
        is_there.then_some(next)
    }

    fn tells(&self, size: u64) -> Answer {
        Answer::Present((!self.setting.sizeless).then_some(bytes(size)))
    }
}
