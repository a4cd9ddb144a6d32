//! Changes of a volume's metadata, which are on the group's disks when they count as made.

use super::Group;
use flexvol_storage::{
    Backend, VolumeId,
    host::lvm::{self, Disks, GroupOrThinPool, unsynced},
    sdk::{Error, ErrorKind, Result},
};
use std::rc::Rc;

impl Group {
    /// Changes a volume's metadata on the disks of the group, durably.
    pub(super) fn commit(
        &self,
        volume: &VolumeId,
        disks: &Disks,
        change: impl FnOnce(&GroupOrThinPool, &Disks) -> Result<()>,
    ) -> Result<()> {
        let group = &self.place.group;
        unsynced::note(group, volume)?;
        let changed = change(&self.place, disks);
        // LVM may still be running, and nobody knows when its change can be synced.
        if changed.as_ref().map_err(Error::kind) == Err(ErrorKind::TimedOut) {
            return changed;
        }
        // LVM may fail after its commit, so sync in any case. If that fails, the note stays for the next call.
        let synced = lvm::sync(disks.paths())
            .and_then(|()| unsynced::clear_note(group, volume))
            // A disk may have been taken out of the group meanwhile.
            .or_else(|_| self.make_durable(volume));
        match (&changed, synced) {
            (Err(_), Err(error)) => {
                log::warn!("what may have changed is not synced: {}", error.report());
                changed
            }
            (_, synced) => changed.and(synced),
        }
    }

    /// Replaces a volume's tag durably. LVM committed just that, so the cached view stays valid with the new tag.
    pub(super) fn retag(&self, volume: &VolumeId, old: Option<&str>, new: &str) -> Result<()> {
        let name = lvm::name_of(volume);
        let (view, before) = (self.facts()?, lvm::changes());
        self.commit(volume, &view.disks, |place, disks| {
            place.retag(disks, &name, old, new)
        })?;
        if let Some(seen) = &mut *self.seen.borrow_mut()
            && (seen.changes, lvm::changes()) == (before, before + 1)
        {
            Rc::make_mut(&mut seen.view).retag(&name, old, new);
            seen.changes = lvm::changes();
        }
        Ok(())
    }
}
