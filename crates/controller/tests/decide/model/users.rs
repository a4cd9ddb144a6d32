//! What users and administrators do.

use super::{BIG, ClaimObject, MIDDLE, SMALL, World, writes};
use flexvol_controller::decide::{Answer, Wanted, decide};

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
                    bound: None,
                    selected: None,
                    request: SMALL,
                    capacity: 0,
                    awaits_node: None,
                    failure: None,
                });
            });
        }
        if let Some(claim) = &self.claim {
            add("a user deletes the claim", &|world| {
                world.claim.as_mut().unwrap().deleting = true;
            });
            match claim.bound {
                None => add("the claim is bound to another volume", &|world| {
                    let claim = world.claim.as_mut().unwrap();
                    claim.bound = Some(false);
                    claim.capacity = SMALL;
                }),
                Some(true) => {
                    add("a pod writes", &|world| world.data = true);
                    if claim.request < BIG {
                        add("a user asks for more", &|world| {
                            world.claim.as_mut().unwrap().request = BIG;
                        });
                    } else if self.setting.lowers && claim.capacity < MIDDLE {
                        // Not for what it has already: that the API server refuses.
                        add("a user asks for less again", &|world| {
                            world.claim.as_mut().unwrap().request = MIDDLE;
                        });
                    }
                }
                Some(false) => {}
            }
        }
        if self.can_be_handed_on() {
            add("the volume is given to another claim", &World::hand_on);
        }
        if self.volume.is_some() {
            add("an administrator deletes the volume", &|world| {
                world.volume.as_mut().unwrap().deleting = true;
                // Who deletes a volume that says Retain keeps its storage for himself.
                world.forced |= !world.setting.deletes;
            });
        }
        let by_force = !self.force_used && self.away.is_none() && !self.setting.lowers;
        if self.volume.is_some() && by_force {
            add("an administrator removes the volume by force", &|world| {
                let released = world
                    .volume
                    .as_ref()
                    .is_some_and(|volume| volume.released || volume.deleting && world.unused());
                world.volume = None;
                world.forced = true;
                world.force_used = true;
                world.data_saved = world.data && !released;
            });
        }
        if self.order.is_some() && by_force {
            add("an administrator removes the order by force", &|world| {
                world.order = None;
                world.force_used = true;
                // Nobody knows of storage without a volume any more: that is the price of force.
                world.forced |= world.volume.is_none();
            });
        }
        if !self.full[0] && self.away.is_none() {
            add("a node becomes full", &|world| world.full[0] = true);
        }
        match self.away {
            None if self.has_no_accident() && !self.setting.lowers => {
                add("a node's agent ends", &|world| world.goes_away(false));
                add("a node is lost", &|world| world.goes_away(true));
            }
            None => {}
            Some(_) => add("the node comes back", &|world| world.away = None),
        }
        all
    }

    /// Administrators wait until nothing is done for the volume any more. Of storage that is to be deleted
    /// they are told.
    fn can_be_handed_on(&self) -> bool {
        let volume = self.volume.as_ref();
        let is_kept = volume.is_some_and(|volume| volume.released && !volume.deleting);
        let order = self.order.as_ref();
        let stays = order.is_some_and(|order| {
            order.wanted == Wanted::Present && matches!(order.answer, Answer::Present(_))
        });
        let waits = self.claim.is_none() && is_kept && stays && !self.handed_on;
        waits && !self.setting.deletes && !writes(&decide(&self.observe()))
    }

    fn hand_on(&mut self) {
        self.handed_on = true;
        self.index = None;
        let volume = self.volume.as_mut().unwrap();
        volume.released = false;
        self.claim = Some(ClaimObject {
            held: false,
            deleting: false,
            bound: Some(true),
            selected: None,
            request: SMALL,
            // Kubernetes believes the volume.
            capacity: volume.capacity,
            awaits_node: None,
            failure: None,
        });
    }

    fn has_no_accident(&self) -> bool {
        let leaders = self.late.is_none() && self.index.is_none();
        leaders && !self.full[0] && !self.force_used
    }

    /// What its driver was doing is cut.
    fn goes_away(&mut self, lost: bool) {
        self.away = Some(lost);
        self.working = self.working.filter(|(node, ..)| *node != 0);
    }
}
