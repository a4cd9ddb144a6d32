//! What must hold.

use super::{World, bytes};
use flexvol_controller::decide::{Answer, Step, Wanted, decide};

impl World {
    /// What must hold from one state to the next.
    pub fn may_become(&self, next: &World) -> Result<(), String> {
        for node in 0..2 {
            match (self.storage[node], next.storage[node]) {
                (Some(before), Some(after)) if after < before => {
                    return Err("storage shrank".to_owned());
                }
                (Some(_), None) => {
                    if !self.unused() && (self.data || !self.forced) {
                        return Err("the storage of a bound claim was deleted".to_owned());
                    }
                    if self.data && (!self.setting.deletes || self.data_saved) {
                        return Err("data were deleted that had to stay".to_owned());
                    }
                }
                _ => {}
            }
        }
        if let (Some(claim), Some(volume)) = (&next.claim, &next.volume)
            && claim.bound == Some(true)
            && !next.forced
            && next.storage[volume.node].is_none_or(|size| size < claim.capacity)
        {
            return Err("a claim says more than there is".to_owned());
        }
        if let (Some(volume), true) = (&next.volume, self.volume.is_none())
            && next.storage[volume.node].is_none()
            // Of a late leader, for a claim that wants none any more: it will be released.
            && next
                .claim
                .as_ref()
                .is_some_and(|claim| !claim.deleting && claim.bound.is_none())
            && !next.forced
        {
            return Err("a volume was published without storage".to_owned());
        }
        Ok(())
    }

    /// The same world with room on every node, where every late leader has been told that it lost.
    pub fn with_room(&self) -> World {
        let mut world = self.clone();
        world.late = None;
        world.index = None;
        world.full = [false, false];
        world
    }

    /// The same, and all nodes are there.
    pub fn without_accidents(&self) -> World {
        World {
            away: None,
            ..self.with_room()
        }
    }

    /// What must hold when nothing happens any more.
    pub fn at_rest(&self) -> Result<(), String> {
        match self.away {
            Some(_) => self.as_far_as_it_can(),
            None => self.as_it_shall_be(),
        }
    }

    /// What must hold when nothing happens until a node comes back: who waits for it is told.
    fn as_far_as_it_can(&self) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{what}: {self:?}"));
        let told = matches!(decide(&self.observe()), Step::Stuck(_));
        let Some(order) = self.order.as_ref().filter(|order| order.node == 0) else {
            let chosen = self.claim.as_ref().and_then(|claim| claim.selected) == Some(0);
            return match &self.claim {
                // Its agent is silent, and the scheduler would choose the node again.
                Some(claim) if claim.bound.is_none() && chosen && !self.is_lost(0) && told => {
                    Ok(())
                }
                _ => self.as_it_shall_be(),
            };
        };
        let waits = match (order.wanted, &self.claim) {
            // What says Retain is people's, whatever was ordered.
            (Wanted::Absent, _) if !self.setting.deletes && self.volume.is_some() => false,
            (Wanted::Absent, _) => order.answer != Answer::Absent,
            (Wanted::Present, Some(claim)) if claim.bound == Some(true) => {
                claim.request > claim.capacity
                    && order.answer != Answer::Present(Some(bytes(claim.request)))
            }
            (Wanted::Present, Some(claim)) => claim.bound.is_none(),
            (Wanted::Present, None) => false,
        };
        if waits && !told && !self.forced {
            return wrong("nobody is told that a node is away");
        }
        if let Some(claim) = &self.claim
            && let Some(volume) = &self.volume
            && claim.bound == Some(true)
            && order.wanted == Wanted::Present
            && !self.forced
        {
            let asks = claim.request > claim.capacity;
            if claim.failure.is_some() && !asks {
                return wrong("a claim that asks for nothing says a failure");
            }
            let small = self.storage[volume.node].is_none_or(|size| size < claim.request);
            if claim.failure.is_none() && asks && small {
                return wrong("a claim does not say why its storage does not grow");
            }
        }
        Ok(())
    }

    /// What must hold when nothing happens any more.
    fn as_it_shall_be(&self) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{what}: {self:?}"));
        if self.forced {
            return Ok(());
        }
        let stored = self.storage.iter().flatten().count();
        match &self.claim {
            Some(claim) if claim.bound == Some(true) => {
                if claim.capacity != claim.request.max(claim.capacity) {
                    return wrong("the claim has not grown");
                }
                if stored != 1 || self.volume.is_none() || self.order.is_none() {
                    return wrong("a bound claim has not exactly one storage");
                }
                if claim.held {
                    return wrong("a settled claim is still held");
                }
                if claim.failure.is_some() {
                    return wrong("a settled claim says a failure");
                }
            }
            Some(claim) if claim.bound.is_none() => return wrong("a claim stays without a volume"),
            claim => {
                if claim.as_ref().is_some_and(|claim| claim.held) {
                    return wrong("a claim that wants nothing is held");
                }
                let kept = !self.setting.deletes && self.claim_made;
                if !kept && (stored > 0 || self.order.is_some() || self.volume.is_some()) {
                    return wrong("something is left of a claim that is gone");
                }
                if stored > 1 {
                    return wrong("storage is left on two nodes");
                }
            }
        }
        Ok(())
    }
}
