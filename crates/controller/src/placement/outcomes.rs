//! What became of the volumes that nodes were asked for.

use super::{Exhausted, Nodes, VolumeRequest, capacity_backoff::CapacityBackoff};
use flexvol_sdk::{Bytes, ErrorClass};

impl Nodes {
    /// Records that a node's driver lacked capacity for this volume.
    pub fn record_exhausted(&self, node: &str, class: &str, size: Bytes, asker: VolumeRequest<'_>) {
        let mut all = self.all();
        let Some(known) = all.get_mut(node) else {
            return;
        };
        let before = known.full.remove(class).map(|before| before.pause);
        let exhausted = Exhausted {
            pause: CapacityBackoff::now(size, before),
            size,
            reported: known.status.capacities.get(class).copied(),
        };
        known.full.insert(class.to_owned(), exhausted);
        let error = ErrorClass::Exhausted;
        self.volume_failures().add(asker, node, class, error, "");
    }

    /// Records that a node's driver failed repeatedly at a volume, except for lack of capacity.
    pub fn record_failure(
        &self,
        node: &str,
        class: &str,
        asker: VolumeRequest<'_>,
        error: ErrorClass,
        words: &str,
    ) {
        if let Some(known) = self.all().get_mut(node) {
            self.volume_failures().add(asker, node, class, error, words);
            let failing = match error {
                ErrorClass::Infeasible => &mut known.refusing,
                _ => &mut known.failing,
            };
            let failing = failing.entry(class.to_owned()).or_default();
            failing.add(asker.namespace);
        }
    }

    /// Records that no volume could be bound to a node. The scheduler does not see that, so the node is not offered
    /// to it during a growing pause. Failures during the pause count once.
    pub fn record_unbindable(&self, node: &str) {
        if let Some(known) = self.all().get_mut(node)
            && !known.is_unbindable()
        {
            known.unbindable = Some(CapacityBackoff::now(Bytes(1), known.unbindable.take()));
        }
    }

    /// Records that a node's driver has made a volume of this size, which was bound to the node.
    pub fn record_created(&self, node: &str, class: &str, size: Bytes) {
        if let Some(known) = self.all().get_mut(node) {
            known.unbindable = None;
            known.failing.remove(class);
            known.refusing.remove(class);
            self.volume_failures().made_one(node, class);
            known
                .full
                .retain(|of, full| of != class || !full.pause.forbids(size));
        }
    }

    /// Forgets what failed at a volume that was made or is not wanted any more.
    pub(crate) fn forget_volume(&self, volume: &str) {
        self.volume_failures().forget(volume);
    }
}
