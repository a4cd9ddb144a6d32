//! What the tags of a logical volume say of it.

use flexvol_storage::{
    Mark, VolumeId,
    host::lvm::{LogicalVolume, PoolKey},
    mark::State,
    sdk::{Bytes, Error, ErrorKind, Result},
};

/// The tag of a logical volume that is not a volume yet. LVM commits a new one before it wipes it,
/// so the mark comes after its ends were seen to be zero; who finds this tag begins again there.
pub(super) const UNFINISHED: &str = "flexvol-unfinished";

/// What the tag of a blank volume begins with while it grows; the size it had follows. Its new end
/// holds what others left there, and is wiped before anybody asks whether the volume is blank.
pub(super) const GROWN_FROM: &str = "flexvol-grown-from=";

/// What a mark's text begins with.
pub(super) const MARK: &str = "flexvol=";

pub(super) fn is_unfinished(volume: &LogicalVolume) -> bool {
    volume.tags.iter().any(|tag| tag == UNFINISHED)
}

pub(super) fn has_state(volume: &LogicalVolume, state: State) -> Result<bool> {
    let mark = mark_of(volume)?.map(Mark::decode).transpose()?;
    Ok(mark.is_some_and(|mark| mark.state == state))
}

/// The tag of a growth that was not ended, and the size before it.
pub(super) fn grown_from(volume: &LogicalVolume) -> Option<(&str, Bytes)> {
    volume.tags.iter().find_map(|tag| {
        let size = tag.strip_prefix(GROWN_FROM)?.parse().ok()?;
        Some((tag.as_str(), Bytes(size)))
    })
}

/// The tag that is a volume's mark. Its handle is sealed, because tags are words of command lines.
pub(super) fn sealed(mark: &Mark, volume: &VolumeId, key: &PoolKey) -> String {
    let handle = key.sealed(&mark.handle, volume);
    Mark {
        handle,
        ..mark.clone()
    }
    .to_string()
}

/// The mark that a tag of this volume is. In a tag that was another volume's, the handle is nobody's.
pub(super) fn opened(tag: &str, volume: &VolumeId, key: &PoolKey) -> Result<Mark> {
    let mark = Mark::decode(tag)?;
    let handle = key.sealed(&mark.handle, volume);
    Ok(Mark { handle, ..mark })
}

/// The size to which a logical volume is growing, by its mark.
pub(super) fn growing_of(volume: &LogicalVolume) -> Result<Option<Bytes>> {
    let mark = mark_of(volume)?.map(Mark::decode).transpose()?;
    Ok(mark.and_then(|mark| mark.growing))
}

/// The tag that is a logical volume's mark.
pub(super) fn mark_of(volume: &LogicalVolume) -> Result<Option<&str>> {
    let mut marks = volume.tags.iter().filter(|tag| tag.starts_with(MARK));
    match (marks.next(), marks.next()) {
        (mark, None) => Ok(mark.map(String::as_str)),
        _ => Err(Error::new(
            ErrorKind::Conflict,
            "the volume has two marks; it is left alone",
        )),
    }
}
