//! What reads bytes that strangers wrote, opened for the fuzz targets and for nobody else.

use crate::{
    block::probe::{self, Content},
    superblock::{self, Found, Superblock},
};
use flexvol_sdk::Bytes;

/// What each reader of superblocks finds in the first bytes of a device: ext, XFS, Btrfs. `Err`
/// has the name of what is no whole superblock.
pub fn superblocks(head: &[u8]) -> [Result<Option<Superblock>, &'static str>; 3] {
    [superblock::ext, superblock::xfs, superblock::btrfs].map(|read| match read(head) {
        Found::Nothing => Ok(None),
        Found::Whole(superblock) => Ok(Some(superblock)),
        Found::Other(kind) => Err(kind),
    })
}

/// What ext may leave unused at the end of a device.
pub fn ext_slack(head: &[u8]) -> Option<Bytes> {
    superblock::ext_details(head).map(|details| details.slack)
}

/// What the first bytes of a device of `size` bytes say, and those from `place` on.
pub fn classify(size: Bytes, head: &[u8], place: u64, there: &[u8]) -> Option<Content> {
    probe::classify_with(size, head, place, there)
}
