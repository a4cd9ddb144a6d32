//! Settings in a superblock that affect every mount and that no mount option overrides.

use super::{Found, ext, le32};

/// A setting in the superblock of an ext3 or ext4 that every mount obeys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// `s_mount_opts`: options that the kernel adds to each mount. Some cannot be negated: `noload` ignores the
    /// journal, `journal_path` names any file of the node.
    MountOptions,
    /// Multiple mount protection: the kernel waits at each mount (`ext4_multi_mount_protect`, fs/ext4/mmp.c),
    /// 11 s to 6 min as the superblock says, and longer after a power cut.
    MultipleMountProtection,
}

/// Returns the demand in the first bytes of a device; `None` if there is none, or no ext.
pub(crate) fn demand(head: &[u8]) -> Option<Demand> {
    const MMP: u32 = 0x100;
    const MOUNT_OPTIONS: usize = 0x200;
    let Found::Whole(_) = ext(head) else {
        return None;
    };
    let sb = head.get(1024..2048)?;
    if *sb.get(MOUNT_OPTIONS)? != 0 {
        return Some(Demand::MountOptions);
    }
    // A superblock without feature words is ext2's, which is never `Whole`.
    (le32(sb, 0x60)? & MMP != 0).then_some(Demand::MultipleMountProtection)
}
