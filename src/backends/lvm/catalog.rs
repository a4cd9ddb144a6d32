//! Which volumes a group has, and what they are called: their marks tell. A name that was promised
//! stands in /run until the mark is there.

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

    /// The volume whose mark has this name. A mark that cannot be read is in nobody's way but its
    /// own volume's.
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
            // A copy of a volume, or one of a group that was merged into this one, is none of ours,
            // and one that was deleted has no name while it is kept.
            let is_own = VolumeId::of(&mark.handle) == volume && mark.pool == key.id();
            if is_own && mark.deleted.is_none() {
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
        // What is in a mark counts: the promise may have been made after a reboot, which took away
        // the one of then. It stays: whoever it was made to may be making the volume, because the
        // mark was going when he looked. While nobody does, the mark is found first.
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
            Some(found) => lvm::remove(&self.place, &found),
            None => Ok(()),
        }
    }
}
