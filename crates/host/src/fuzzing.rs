//! Parsers of untrusted bytes, public for the fuzz targets only.

use crate::{
    block::probe::{self, Content},
    superblock::{self, Found, Superblock},
};
use flexvol_sdk::Bytes;

/// Parses the first bytes of a device as each type of superblock: ext, XFS, Btrfs. `Err` describes an incomplete or
/// unsupported one.
pub fn superblocks(head: &[u8]) -> [Result<Option<Superblock>, &'static str>; 3] {
    [superblock::ext, superblock::xfs, superblock::btrfs].map(|read| match read(head) {
        Found::Nothing => Ok(None),
        Found::Whole(superblock) => Ok(Some(superblock)),
        Found::Other(kind) => Err(kind),
    })
}

/// Returns the maximum size of the unused rest of a device with an ext file system.
pub fn ext_slack(head: &[u8]) -> Option<Bytes> {
    superblock::ext_details(head).map(|details| details.slack)
}

/// Classifies a device of `size` bytes by its first bytes, and those at `place`.
pub fn classify(size: Bytes, head: &[u8], place: u64, there: &[u8]) -> Option<Content> {
    probe::classify_with(size, head, place, there)
}
