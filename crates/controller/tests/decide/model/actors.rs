//! What Kubernetes and the nodes do by themselves.

use super::{Actor, ClaimObject, Node, World, bytes, writes};
use flexvol_controller::decide::{Answer, Wanted, decide};

impl World {
    pub(super) fn scheduler(&self, node: Node) -> Option<World> {
        let claim = self.claim.as_ref()?;
        let waits = self.setting.late_binding
            && claim.selected.is_none()
            && claim.bound.is_none()
            && !claim.deleting
            && !self.is_lost(node);
        waits.then(|| {
            let mut next = self.clone();
            next.claim.as_mut().unwrap().selected = Some(node);
            next
        })
    }

    /// What one actor does if nobody interferes; `None` when it rests.
    pub fn goes_on(&self, actor: Actor) -> Option<World> {
        let mut next = self.clone();
        match actor {
            Actor::Leader => {
                let step = decide(&self.observe());
                if !writes(&step) {
                    return None;
                }
                next.write(&step);
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
                let fits = |node: &Node| !self.full[*node] && !self.is_lost(*node);
                next = self.scheduler(all.into_iter().find(fits).unwrap_or(0))?;
            }
            Actor::Binder => match (&self.claim, &self.volume) {
                (Some(claim), Some(volume)) if claim.bound.is_none() && !claim.deleting => {
                    if volume.released || volume.deleting {
                        return None;
                    }
                    let capacity = volume.capacity;
                    let claim = next.claim.as_mut()?;
                    claim.bound = Some(true);
                    claim.capacity = capacity;
                }
                (claim, Some(volume)) if !volume.released => {
                    let has = claim
                        .as_ref()
                        .is_some_and(|claim| claim.bound != Some(false));
                    if has {
                        return None;
                    }
                    next.volume.as_mut()?.released = true;
                }
                _ => return None,
            },
            Actor::Expander => {
                let (claim, volume) = (self.claim.as_ref()?, self.volume.as_ref()?);
                let pending = self.setting.expander
                    && claim.bound == Some(true)
                    && claim.request > claim.capacity
                    && (volume.capacity < claim.request || claim.awaits_node.is_none());
                if !pending {
                    return None;
                }
                let request = claim.request;
                let volume = next.volume.as_mut()?;
                volume.capacity = volume.capacity.max(request);
                // It forgets what was said of a former growth.
                let claim = next.claim.as_mut()?;
                claim.awaits_node = Some(request);
                claim.failure = None;
            }
            Actor::Kubelet => {
                let (claim, volume) = (self.claim.as_ref()?, self.volume.as_ref()?);
                let size = claim.awaits_node?;
                let grows = self.setting.grows_on_node
                    && claim.bound == Some(true)
                    && volume.capacity > claim.capacity;
                // The driver's `expandfs` grows storage and file system, or fails.
                let has = self.storage[volume.node]?;
                if !grows || self.is_lost(volume.node) {
                    return None;
                }
                let claim = next.claim.as_mut()?;
                claim.awaits_node = None;
                if has < size && self.full[volume.node] {
                    // It tries what is asked for ever, and gives up what is not asked any more.
                    return (claim.request != size).then_some(next);
                }
                next.storage[volume.node] = Some(has.max(size));
                claim.capacity = size;
                // Before Kubernetes 1.31 it leaves what was said of the storage.
            }
        }
        self.forget_overtaken(&mut next);
        next.tidy();
        (next != *self).then_some(next)
    }

    pub(super) fn node_reads(&self) -> Option<World> {
        let order = self.order.as_ref()?;
        if self.working.is_some() || self.is_away(order.node) {
            return None;
        }
        let done = match (order.wanted, order.answer) {
            (Wanted::Absent, Answer::Absent) => true,
            (Wanted::Present, Answer::Present(size)) => {
                size.is_some_and(|size| size.0 >= order.size)
            }
            // What was made before is never made again: the driver says that it is not there.
            (Wanted::Present, Answer::None) => order.recalled && order.full,
            _ => false,
        };
        // The node reads volume and claim live before it deletes anything.
        let allowed = order.wanted == Wanted::Present
            || match &self.volume {
                None => self.unused(),
                Some(volume) => {
                    let unbound = |claim: &ClaimObject| claim.bound.is_none();
                    let may_get_it = self.claim.as_ref().is_some_and(unbound) && !volume.deleting;
                    let ends = volume.released || volume.deleting;
                    self.setting.deletes && ends && self.unused() && !may_get_it
                }
            };
        (!done && allowed).then(|| {
            let mut next = self.clone();
            next.working = Some((order.node, order.wanted, order.size, order.recalled));
            next
        })
    }

    pub(super) fn unused(&self) -> bool {
        self.claim
            .as_ref()
            .is_none_or(|claim| claim.bound != Some(true))
    }

    /// The driver ends; the agent writes what it found, unless it is cut or the order has changed.
    pub(super) fn driver_ends(&self, writes: bool) -> Option<World> {
        let (node, wanted, size, recalled) = self.working?;
        let mut next = self.clone();
        next.working = None;
        let (answer, full) = match (wanted, self.storage[node]) {
            (Wanted::Absent, _) => {
                next.storage[node] = None;
                (Answer::Absent, false)
            }
            (Wanted::Present, Some(has)) if has >= size => {
                (Answer::Present(Some(bytes(has))), false)
            }
            (Wanted::Present, None) if recalled => (Answer::None, true),
            (Wanted::Present, has) if self.full[node] => (
                has.map_or(Answer::None, |has| Answer::Present(Some(bytes(has)))),
                true,
            ),
            (Wanted::Present, _) => {
                next.storage[node] = Some(size);
                (Answer::Present(Some(bytes(size))), false)
            }
        };
        let order = next.order.as_mut();
        if writes
            && let Some(order) = order
            && (order.node, order.wanted, order.size, order.recalled)
                == (node, wanted, size, recalled)
        {
            order.answer = answer;
            order.full = full;
        }
        Some(next)
    }
}
