//! Invariants.

use super::{Absence, BIG, ClaimObject, HUGE, NodeVolumeObject, Tenant, World, bytes};
use flexvol_claims::{Answer, Published, Step, StorageState, decide};

impl World {
    /// Checks the transition from one state to the next.
    pub fn may_become(&self, next: &World) -> Result<(), String> {
        let is_removed = next.away == Some(Absence::Removed);
        for node in (0..2).filter(|node| *node != 0 || !is_removed) {
            match (self.storage[node], next.storage[node]) {
                (Some(before), Some(after)) if after < before => {
                    return Err("storage shrank".to_owned());
                }
                (Some(_), None) => {
                    let is_empty = self.forced || self.is_forged();
                    let is_used = self
                        .volume
                        .as_ref()
                        .is_none_or(|volume| volume.node == node);
                    if !is_used {
                        continue;
                    }
                    if !self.unused() && (self.data || !is_empty) {
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
            && claim.is_bound()
            && !next.is_forged()
            && !next.forced
            && !next.setting.implausible_sizes
            && (volume.node != 0 || !is_removed)
            && next.storage[volume.node].is_none_or(|size| size < claim.capacity)
        {
            return Err("a claim says more than there is".to_owned());
        }
        let before = self.claim.as_ref().filter(|claim| claim.is_bound());
        if let (Some(before), Some(after)) = (before, &next.claim)
            && self.setting.node_expansion_required
            && !self.setting.sizeless
            && !self.setting.implausible_sizes
            && after.is_bound()
            && after.capacity > before.capacity.max(next.file_system)
            && !next.is_forged()
            && !next.forced
        {
            return Err("a claim says more than its file system has".to_owned());
        }
        if let (Some(volume), true) = (&next.volume, self.volume.is_none())
            && next.storage[volume.node].is_none()
            && (volume.node != 0 || !is_removed)
            // Except by a late leader for a claim that wants no volume any more: the volume will be released.
            && next
                .claim
                .as_ref()
                .is_some_and(|claim| !claim.deleting && claim.named != Some(false))
            && !next.forced
        {
            return Err("a volume was published without storage".to_owned());
        }
        next.is_counted()?;
        if next.counts().any(|size| size > BIG) {
            return Err("a size is counted that nobody asked for".to_owned());
        }
        let wanted = |node_volume: &&NodeVolumeObject| node_volume.wanted == StorageState::Present;
        let ordered = next.node_volume.as_ref().filter(wanted);
        if ordered.is_some_and(|node_volume| node_volume.size > next.most()) {
            return Err("more is asked of a node than the class allows".to_owned());
        }
        if ordered.is_some_and(|node_volume| self.may_cut_off(next, node_volume)) {
            return Err("a node is asked for less than there is or may be".to_owned());
        }
        if next.overtaken {
            return Err("a claim was written between Kubernetes' two writes".to_owned());
        }
        let recalls = || matches!(decide(&self.observe()), Step::RecreateNodeVolume { .. });
        if self.let_go && self.volume.is_some() && recalls() {
            return Err("a volume that was let go of is recalled".to_owned());
        }
        Ok(())
    }

    /// Whether the next state orders a size, or a smaller one, and less than the storage has or its node works at. A driver
    /// that cuts storage down to the ordered size would cut off the rest.
    fn may_cut_off(&self, next: &World, ordered: &NodeVolumeObject) -> bool {
        let is_exempt = match &self.node_volume {
            // After a forced removal of a NodeVolume, it is unknown what a late leader missed and a former claim had.
            None => self.late.is_some() || self.handed_on,
            // The former order cuts off more. Kubelet may have grown the storage before anything was ordered.
            Some(before) if before.size <= ordered.size => true,
            // The node has answered that it cannot have the larger size. It may try again at the same moment.
            Some(before) => before.full || self.forced || self.setting.implausible_sizes,
        };
        let working = self.working.filter(|(node, wanted, ..)| {
            (*node, *wanted) == (ordered.node, StorageState::Present) && self.node_volume.is_some()
        });
        let may_have = next.storage[ordered.node].max(working.map(|(.., size, _)| size));
        !is_exempt && may_have.is_some_and(|size| ordered.size < size)
    }

    /// Checks that the claim's sizes, which quota counts, are never written below the measured size.
    pub fn counts_what_is_had(&self) -> Result<(), String> {
        match decide(&self.observe()) {
            Step::SetClaimCapacity(size) | Step::SetFileSystemResizePending(size)
                if size.0 < self.measured() =>
            {
                Err(format!(
                    "{size} would be counted, and more is had: {self:?}"
                ))
            }
            _ => Ok(()),
        }
    }

    /// The sizes in the claim and the volume.
    fn counts(&self) -> impl Iterator<Item = u64> {
        let of_claim = self.claim.as_ref().map(|claim| claim.capacity);
        let awaited = self.claim.as_ref().and_then(|claim| claim.awaits_node);
        let of_volume = self.volume.as_ref().map(|volume| volume.capacity);
        of_claim.into_iter().chain(awaited).chain(of_volume)
    }

    /// Checks that quota counts whatever the storage has or may still get: what was ordered, and what a node works at.
    /// Quota counts the larger of request and allocated size, and no capacity of a volume that was handed on.
    fn is_counted(&self) -> Result<(), String> {
        let (Some(claim), Some(node_volume)) = (&self.claim, &self.node_volume) else {
            return Ok(());
        };
        // Nobody knows what a NodeVolume that was removed by force ordered for a former claim, nor what kubelet had grown
        // for it, because Kubernetes' own expander had it do so.
        let is_lost = self.force_used || self.setting.expander;
        let is_unknown = self.forced || self.handed_on && is_lost;
        let is_exempt = self.setting.sizeless || is_unknown || !claim.is_bound();
        // What a former claim of the volume had, or may have had, is counted first.
        let is_about_to_count = || {
            matches!(
                decide(&self.observe()),
                Step::SetAllocatedResources(_)
                    | Step::SetPersistentVolumeCapacity(_)
                    | Step::SetClaimCapacity(_)
                    | Step::SetFileSystemResizePending(_)
            )
        };
        let is_late = || self.handed_on && is_about_to_count();
        let counted = claim.request.max(claim.allocated);
        let given = if self.handed_on { claim.capacity } else { 0 };
        let working = self.working.map_or(0, |(.., size, _)| size);
        let has = self.storage[node_volume.node].unwrap_or_default();
        // Of a node that says arbitrary sizes, only what was ordered is known.
        let may_have = match self.setting.implausible_sizes {
            true => node_volume.size,
            false => node_volume.size.max(working).max(has),
        };
        if !is_exempt && may_have > counted.max(given) && !is_late() {
            return Err(format!(
                "quota counts {counted}, and more is ordered or had"
            ));
        }
        Ok(())
    }

    fn measured(&self) -> u64 {
        match self
            .node_volume
            .as_ref()
            .map(|node_volume| node_volume.answer)
        {
            Some(Answer::Present(Some(size))) if size.0 != HUGE => size.0,
            _ => 0,
        }
    }

    /// The same world with capacity on every node, and without late leaders.
    pub fn with_room(&self) -> World {
        let mut world = self.clone();
        world.late = None;
        world.cached = None;
        world.full = [false, false];
        world
    }

    /// Like [`with_room`](Self::with_room), with all nodes available.
    pub fn without_accidents(&self) -> World {
        World {
            away: self.away.filter(|absence| *absence == Absence::Removed),
            ..self.with_room()
        }
    }

    /// Checks a state in which nothing happens any more.
    pub fn at_rest(&self) -> Result<(), String> {
        match self.away {
            Some(Absence::Taken) => self.as_far_as_it_can_be_bound(),
            Some(Absence::Stalled) => self.as_it_shall_be(),
            Some(_) => self.as_far_as_it_can(),
            None => self.as_it_shall_be(),
        }
    }

    /// Checks a state in which nothing happens until a node's hostname is unique again. Only a claim that may get a
    /// volume there at any moment may wait for that.
    fn as_far_as_it_can_be_bound(&self) -> Result<(), String> {
        let is_about_to_be_made = self.volume.is_none()
            && self.node_volume.as_ref().is_some_and(|node_volume| {
                node_volume.node == 0
                    && node_volume.wanted == StorageState::Present
                    && node_volume.published == Published::Soon
            });
        let told = matches!(decide(&self.observe()), Step::Blocked(_));
        if is_about_to_be_made && told {
            return Ok(());
        }
        self.as_it_shall_be()
    }

    /// Checks a state in which nothing happens until a node comes back. A claim that waits for it has to be told.
    fn as_far_as_it_can(&self) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{what}: {self:?}"));
        let told = matches!(decide(&self.observe()), Step::Blocked(_));
        let Some(node_volume) = self
            .node_volume
            .as_ref()
            .filter(|node_volume| node_volume.node == 0)
        else {
            let chosen = self.claim.as_ref().and_then(|claim| claim.selected) == Some(0);
            return match &self.claim {
                // The agent is silent, and the scheduler would select the node again.
                Some(claim) if claim.named.is_none() && chosen && !self.is_lost(0) && told => {
                    Ok(())
                }
                _ => self.as_it_shall_be(),
            };
        };
        let ends = self.claim.as_ref();
        let ends = ends.is_some_and(|claim| claim.deleting && claim.held && !claim.is_bound());
        if ends && node_volume.wanted == StorageState::Absent {
            return wrong("a claim that has no volume waits for a node that is away");
        }
        let is_removed = self.away == Some(Absence::Removed);
        let unbound = self
            .claim
            .as_ref()
            .is_none_or(|claim| claim.named.is_none());
        let is_free = match node_volume.wanted {
            StorageState::Absent => {
                node_volume.published < Published::Seen && self.volume.is_none()
            }
            StorageState::Present => node_volume.published < Published::Seen && unbound,
        };
        if is_removed && is_free && !self.forced {
            return wrong("what was ordered of a machine that is gone is waited for");
        }
        let waits = match (node_volume.wanted, &self.claim) {
            // A retained volume is the administrator's, whatever was ordered.
            (StorageState::Absent, _) if !self.setting.deletes && self.volume.is_some() => false,
            (StorageState::Absent, _) => node_volume.answer != Answer::Absent,
            (StorageState::Present, Some(claim)) if claim.is_bound() => {
                claim.request > claim.capacity
                    && node_volume.answer != Answer::Present(Some(bytes(claim.request)))
            }
            (StorageState::Present, Some(claim)) => claim.named.is_none(),
            (StorageState::Present, None) => false,
        };
        if waits && !told && !self.forced {
            return wrong("nobody is told that a node is away");
        }
        if let Some(claim) = &self.claim
            && let Some(volume) = &self.volume
            && claim.is_bound()
            && node_volume.wanted == StorageState::Present
            && !self.forced
        {
            let asks = claim.request > claim.capacity;
            if claim.failure.is_some() && !asks {
                return wrong("a claim that asks for nothing says a failure");
            }
            let small = self.storage[volume.node].is_none_or(|size| size < claim.request);
            if claim.failure.is_none() && asks && small && !is_removed {
                return wrong("a claim does not say why its storage does not grow");
            }
        }
        Ok(())
    }

    /// Checks a final state.
    fn as_it_shall_be(&self) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{what}: {self:?}"));
        if self.forced {
            return Ok(());
        }
        let said = self.volume.as_ref().map(|volume| volume.capacity);
        let said = said.max(self.claim.as_ref().map(|claim| claim.capacity));
        if self.node_volume.is_none()
            && said > Some(self.most())
            && matches!(decide(&self.observe()), Step::Blocked(_))
        {
            // The capacity is actual, or was written by Kubernetes' expander. The administrator is told.
            return Ok(());
        }
        let stored = self.storage.iter().flatten().count();
        match &self.claim {
            Some(claim) if claim.is_bound() => {
                let is_refused = self.is_refused(claim);
                if claim.capacity < claim.request && !is_refused {
                    return wrong("the claim has not grown");
                }
                // If the class forbids the request, quota counts the request.
                if !claim.deleting && !is_refused && claim.capacity < self.measured() {
                    return wrong("more is had than is counted");
                }
                if claim.allocated > claim.capacity.max(claim.request) {
                    return wrong("more is counted than is had and requested");
                }
                if stored != 1 || self.volume.is_none() || self.node_volume.is_none() {
                    return wrong("a bound claim has not exactly one storage");
                }
                if claim.held {
                    return wrong("a settled claim is still held");
                }
                if claim.failure.is_some() != is_refused {
                    return wrong("a claim does not say whether its storage fails to grow");
                }
            }
            Some(claim) if self.is_spoiled() => {
                // Such a claim may stay incomplete, but a deleted one has to go.
                if claim.deleting {
                    return wrong("a claim cannot go");
                }
            }
            Some(claim) if claim.named != Some(false) => {
                return wrong("a claim stays without a volume");
            }
            claim => {
                if claim.as_ref().is_some_and(|claim| claim.held) {
                    return wrong("a claim that wants nothing is held");
                }
                let kept = !self.setting.deletes && self.claim_made;
                if !kept && (stored > 0 || self.node_volume.is_some() || self.volume.is_some()) {
                    return wrong("something is left of a claim that is gone");
                }
                if stored > 1 {
                    return wrong("storage is left on two nodes");
                }
                if self.volume.is_none() && (stored > 0 || self.node_volume.is_some()) {
                    return wrong("storage is left that never had a volume");
                }
            }
        }
        Ok(())
    }

    /// Whether the claim requests more than it has and than its class allows.
    fn is_refused(&self, claim: &ClaimObject) -> bool {
        claim.capacity < claim.request && self.most() < claim.request
    }

    /// Whether the claim's author made Kubernetes bind a claim that is being deleted. No pod starts with it.
    fn is_forged(&self) -> bool {
        let deleting = self.claim.as_ref().is_some_and(|claim| claim.deleting);
        self.setting.tenant == Some(Tenant::Binds) && deleting
    }

    /// Whether the claim's author has written values for which no volume is made.
    fn is_spoiled(&self) -> bool {
        let is_spoiled = self.claim.as_ref().is_some_and(|claim| {
            // Kubernetes sets a provisioner as long as the claim names no volume.
            let names_nothing = claim.named == Some(true) && self.node_volume.is_none();
            !claim.is_bound() && (names_nothing || !claim.ours || claim.refused)
        });
        self.setting.tenant.is_some() && is_spoiled
    }
}
