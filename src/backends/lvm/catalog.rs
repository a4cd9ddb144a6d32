//! Names of the volumes in a group, read from their marks. A reserved name is stored in /run until the volume has
//! its mark.

use super::{
    Group,
    tags::{MARK, is_unfinished, mark_of, opened},
};
use flexvol_storage::{
    Catalog, VolumeId,
    host::{
        PoolId,
        lvm::{self, GroupOrThinPool, Names},
    },
    sdk::{Handle, Result, VolumeName},
};

impl Group {
    pub(super) fn names(&self) -> Result<Names> {
        GroupOrThinPool::names(self.facts()?.id()?)
    }

    /// Returns the volume whose mark has this name. An unreadable mark affects only its own volume.
    fn named(&self, name: &VolumeName) -> Result<Option<Handle>> {
        let view = self.view(None)?;
        let key = view.key()?;
        let field = format!("name={name}");
        for found in &view.volumes {
            let mut marks = found.tags.iter().filter(|tag| tag.starts_with(MARK));
            let Some(volume) = lvm::volume_in(&found.name)
                .filter(|_| marks.any(|mark| mark.split(':').any(|it| it == field)))
            else {
                continue;
            };
            let Some(tag) = mark_of(found)? else {
                continue;
            };
            let mark = opened(tag, &volume, &key)?;
            // Skip copies, also from a group that was merged into this one, and kept volumes, which have no name.
            if mark.is_of(&volume, key.id()) && mark.deleted.is_none() {
                return Ok(Some(mark.handle));
            }
        }
        Ok(None)
    }
}

impl Catalog for Group {
    fn id(&self) -> Result<PoolId> {
        self.facts()?.id()
    }

    fn volume_ids(&self) -> Result<Vec<VolumeId>> {
        let view = self.view(None)?;
        let volumes = view.volumes.iter().filter(|found| !is_unfinished(found));
        Ok(volumes
            .filter_map(|found| lvm::volume_in(&found.name))
            .collect())
    }

    fn bind(&self, name: &VolumeName, handle: &Handle) -> Result<Handle> {
        self.forget();
        let names = self.names()?;
        let promised = names.reserve(name, handle)?;
        // A name in a mark takes precedence: the reservation may be new, since a reboot empties /run. The
        // reservation stays, because another call may be making a volume for it after the mark had disappeared. If
        // none is, the mark is found first.
        Ok(self.named(name)?.unwrap_or(promised))
    }

    fn lookup(&self, name: &VolumeName) -> Result<Option<Handle>> {
        match self.named(name)? {
            None => self.names()?.lookup(name),
            has => Ok(has),
        }
    }

    fn free(&self, name: &VolumeName, volume: &VolumeId) -> Result<()> {
        self.names()?.release(name, volume)
    }

    fn discard(&self, volume: &VolumeId) -> Result<()> {
        match self.logical_volume(volume)?.filter(is_unfinished) {
            Some(found) => lvm::remove(&self.place, &self.facts()?.disks, &found),
            None => Ok(()),
        }
    }
}
