//! Tags of a logical volume.

use flexvol_storage::{
    Mark, VolumeId,
    host::lvm::{LogicalVolume, PoolKey},
    mark::State,
    sdk::{Bytes, Error, ErrorKind, Result},
};

/// The tag of a logical volume that is not a volume yet. LVM commits a new one before wiping it, so the mark is
/// written after its ends were seen to be zero. A call that finds this tag repeats that.
pub(super) const UNFINISHED: &str = "flexvol-unfinished";

/// Prefix of the tag of a blank volume while it grows, followed by its old size. The new end holds foreign data,
/// and is wiped before the volume is checked to be blank.
pub(super) const GROWN_FROM: &str = "flexvol-grown-from=";

/// Prefix of a mark's text.
pub(super) const MARK: &str = "flexvol=";

pub(super) fn is_unfinished(volume: &LogicalVolume) -> bool {
    volume.tags.iter().any(|tag| tag == UNFINISHED)
}

pub(super) fn has_state(volume: &LogicalVolume, state: State) -> Result<bool> {
    let mark = mark_of(volume)?.map(Mark::decode).transpose()?;
    Ok(mark.is_some_and(|mark| mark.state == state))
}

/// Returns the tag of an incomplete growth, and the size before it.
pub(super) fn grown_from(volume: &LogicalVolume) -> Option<(&str, Bytes)> {
    volume.tags.iter().find_map(|tag| {
        let size = tag.strip_prefix(GROWN_FROM)?.parse().ok()?;
        Some((tag.as_str(), Bytes(size)))
    })
}

/// Encodes a mark as a tag. The handle is sealed, because tags appear on command lines.
pub(super) fn sealed(mark: &Mark, volume: &VolumeId, key: &PoolKey) -> String {
    let handle = key.sealed(&mark.handle, volume);
    Mark {
        handle,
        ..mark.clone()
    }
    .to_string()
}

/// Decodes the mark in a tag of this volume. In a tag copied from another volume, the handle unseals to a
/// meaningless one.
pub(super) fn opened(tag: &str, volume: &VolumeId, key: &PoolKey) -> Result<Mark> {
    let mark = Mark::decode(tag)?;
    let handle = key.sealed(&mark.handle, volume);
    Ok(Mark { handle, ..mark })
}

/// Returns the size to which a logical volume is growing, by its mark.
pub(super) fn growing_of(volume: &LogicalVolume) -> Result<Option<Bytes>> {
    let mark = mark_of(volume)?.map(Mark::decode).transpose()?;
    Ok(mark.and_then(|mark| mark.growing))
}

/// Returns the tag with a logical volume's mark.
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
