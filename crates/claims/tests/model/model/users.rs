//! Actions of users and administrators.

use super::{
    Absence, BIG, ClaimObject, MIDDLE, NodeVolumeObject, Phase, SMALL, Tenant, World, writes,
};
use flexvol_claims::{Answer, Published, StorageState, decide};

impl World {
    pub(super) fn users(&self) -> Vec<(&'static str, Option<World>)> {
        let mut all = Vec::new();
        let mut add = |name, change: &dyn Fn(&mut World)| {
            let mut next = self.clone();
            change(&mut next);
            all.push((name, Some(next)));
        };
        if !self.claim_made {
            add("a user makes the claim", &|world| {
                world.claim_made = true;
                world.claim = Some(ClaimObject {
                    held: false,
                    deleting: false,
                    ours: true,
                    refused: false,
                    named: None,
                    completed: false,
                    phase: Phase::Pending,
                    selected: None,
                    request: SMALL,
                    capacity: 0,
                    allocated: 0,
                    awaits_node: None,
                    failure: None,
                });
            });
        }
        if let Some(claim) = &self.claim {
            add("a user deletes the claim", &|world| {
                world.claim.as_mut().unwrap().deleting = true;
            });
            match claim.named {
                None => add("the claim is bound to another volume", &|world| {
                    let claim = world.claim.as_mut().unwrap();
                    (claim.named, claim.completed) = (Some(false), true);
                    claim.phase = Phase::Bound;
                    claim.capacity = SMALL;
                }),
                Some(true) if claim.phase == Phase::Bound && self.volume.is_some() => {
                    // Kubelet starts no pod with a claim that is being deleted. A running pod may have written before.
                    if !claim.deleting {
                        add("a pod writes", &|world| world.data = true);
                    }
                    if self.setting.tenant.is_some() {
                        // Growth is explored in settings without a tenant.
                    } else if claim.request < BIG {
                        add("a user asks for more", &|world| {
                            world.claim.as_mut().unwrap().request = BIG;
                        });
                    } else if self.setting.lowers && claim.capacity < MIDDLE {
                        // Never down to the capacity, which the API server rejects.
                        add("a user asks for less again", &|world| {
                            world.claim.as_mut().unwrap().request = MIDDLE;
                        });
                    }
                }
                Some(_) => {}
            }
        }
        if self.can_be_handed_on() {
            add("the volume is given to another claim", &World::hand_on);
        }
        if self.volume.is_some() {
            add("an administrator deletes the volume", &|world| {
                world.volume.as_mut().unwrap().deleting = true;
                // An administrator who deletes a retained volume keeps its storage.
                world.forced |= !world.setting.deletes;
            });
        }
        let by_force = !self.force_used && self.away.is_none() && self.setting.has_force();
        if self.volume.is_some() && by_force {
            add("an administrator removes the volume by force", &|world| {
                let released = world
                    .volume
                    .as_ref()
                    .is_some_and(|volume| volume.released || volume.deleting && world.unused());
                world.volume = None;
                world.forced = true;
                world.force_used = true;
                // Before a leader has noted it in the NodeVolume, the volume cannot be distinguished from one that
                // never existed, and a tenant may claim the latter.
                let seen =
                    |node_volume: &NodeVolumeObject| node_volume.published == Published::Seen;
                let is_noted = world.node_volume.as_ref().is_none_or(seen);
                world.data &= is_noted;
                world.data_saved = world.data && !released;
            });
        }
        // This orphans storage. A tenant who deletes the claim at the same moment could have it deleted under the
        // volume of a late leader, so it is not explored.
        let by_force = by_force && self.setting.tenant != Some(Tenant::Chooses);
        if self.node_volume.is_some() && by_force {
            add(
                "an administrator removes the NodeVolume by force",
                &|world| {
                    world.node_volume = None;
                    world.force_used = true;
                    // Storage without a volume is orphaned: the price of force.
                    world.forced |= world.volume.is_none();
                },
            );
        }
        if !self.full[0] && self.away.is_none() && (self.setting.lowers || !self.setting.is_calm())
        {
            add("a node becomes full", &|world| world.full[0] = true);
        }
        let may_be_taken = self.away.is_none() && !self.full[0] && !self.force_used;
        if may_be_taken && !self.setting.is_calm() {
            add("another node takes a node's hostname", &|world| {
                world.away = Some(Absence::Taken);
            });
            add("a node makes nothing any more", &|world| {
                world.away = Some(Absence::Stalled);
            });
        }
        match self.away {
            None if self.has_no_accident() && !self.setting.is_calm() => {
                add("a node's agent ends", &|world| {
                    world.goes_away(Absence::Silent);
                });
                add("a node is lost", &|world| world.goes_away(Absence::Lost));
            }
            None | Some(Absence::Removed) => {}
            Some(absence) => {
                add("the node comes back", &|world| world.away = None);
                let never_used =
                    |node_volume: &NodeVolumeObject| node_volume.published < Published::Seen;
                if absence == Absence::Lost && self.node_volume.as_ref().is_some_and(never_used) {
                    add("its machine is removed", &|world| {
                        world.away = Some(Absence::Removed);
                        world.storage[0] = None;
                    });
                }
            }
        }
        let written = self.tenant().into_iter();
        all.extend(written.map(|(name, next)| (name, Some(next))));
        all
    }

    /// Whether a volume can be handed on: administrators wait until all work for it is done. They are told of storage
    /// that has to be deleted.
    fn can_be_handed_on(&self) -> bool {
        let volume = self.volume.as_ref();
        let is_kept = volume.is_some_and(|volume| volume.released && !volume.deleting);
        let node_volume = self.node_volume.as_ref();
        let stays = node_volume.is_some_and(|node_volume| {
            node_volume.wanted == StorageState::Present
                && matches!(node_volume.answer, Answer::Present(_))
        });
        // Without sizes, it is unknown what the last claim requested in vain.
        let stays = stays && !self.setting.sizeless;
        let waits = self.claim.is_none() && is_kept && stays && !self.handed_on;
        waits && !self.setting.deletes && !writes(&decide(&self.observe()))
    }

    fn hand_on(&mut self) {
        self.handed_on = true;
        let volume = self.volume.as_mut().unwrap();
        volume.released = false;
        self.claim = Some(ClaimObject {
            held: false,
            deleting: false,
            ours: true,
            refused: false,
            named: Some(true),
            completed: true,
            phase: Phase::Bound,
            selected: None,
            request: SMALL,
            // Kubernetes takes the volume's capacity.
            capacity: volume.capacity,
            allocated: 0,
            awaits_node: None,
            failure: None,
        });
    }

    fn has_no_accident(&self) -> bool {
        let leaders = self.late.is_none() && self.cached.is_none();
        leaders && !self.full[0] && !self.force_used
    }

    /// The driver's work is interrupted.
    fn goes_away(&mut self, absence: Absence) {
        self.away = Some(absence);
        self.working = self.working.filter(|(node, ..)| *node != 0);
    }
}
