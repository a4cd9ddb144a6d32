//! Writes of the claim's author besides deletion and allowed sizes: everything but the status.

use super::{BIG, ClaimObject, MIDDLE, NodeVolumeObject, Tenant, VolumeObject, World};
use flexvol_claims::Published;

impl World {
    pub(super) fn tenant(&self) -> Vec<(&'static str, World)> {
        let mut all = Vec::new();
        let (Some(claim), Some(tenant)) = (&self.claim, self.setting.tenant) else {
            return all;
        };
        let is_young = |node_volume: &&mut NodeVolumeObject| node_volume.published == Published::No;
        let mut next = self.clone();
        if let Some(node_volume) = next.node_volume.as_mut().filter(is_young)
            && tenant == Tenant::Chooses
        {
            node_volume.outdated = true;
            all.push(("its class is made anew with other parameters", next));
        }
        let mut add = |name, write: &dyn Fn(&mut ClaimObject)| {
            let mut next = self.clone();
            write(next.claim.as_mut().unwrap());
            all.push((name, next));
        };
        add("its author empties the claim's finalizers", &|claim| {
            claim.held = false;
        });
        match tenant {
            Tenant::Binds => {
                // With a volume that is being deleted by an administrator, the author binds unused storage.
                let stays = |volume: &VolumeObject| !volume.deleting;
                if claim.named.is_none() && self.volume.as_ref().is_none_or(stays) {
                    add("its author says the volume's name", &|claim| {
                        claim.named = Some(true);
                    });
                }
                add(
                    "its author says, or takes back, that it is bound",
                    &|claim| {
                        claim.completed = !claim.completed;
                    },
                );
            }
            Tenant::Outgrows => {
                if self.volume.is_none() || !claim.is_bound() {
                    return all;
                }
                if claim.request < BIG {
                    add("its author asks for more than its class allows", &|claim| {
                        claim.request = BIG;
                    });
                }
                if claim.request != MIDDLE && claim.capacity < MIDDLE {
                    add("its author asks for what its class allows", &|claim| {
                        claim.request = MIDDLE;
                    });
                }
            }
            Tenant::Chooses => {
                add("its author writes our finalizer", &|claim| {
                    // The API server rejects new finalizers on an object that is being deleted.
                    claim.held |= !claim.deleting;
                });
                add("its author takes our provisioner away", &|claim| {
                    claim.ours = false;
                });
                add("its class goes, or comes back", &|claim| {
                    claim.refused = !claim.refused;
                });
                if self.setting.late_binding {
                    let nodes = [
                        ("its author chooses no node", None),
                        ("its author chooses 0", Some(0)),
                        ("its author chooses 1", Some(1)),
                    ];
                    for (name, node) in nodes {
                        add(name, &|claim| claim.selected = node);
                    }
                }
            }
        }
        all
    }
}
