//! Volume groups and thin pools, by LVM's own commands.
//!
//! Only `lvm` writes and reads LVM's metadata: it has the locks that every other user of it
//! heeds. What the kernel has made of a logical volume is asked of the kernel instead
//! ([`mapping`]), which costs no program and works while the volume group is missing.
//!
//! A volume is the logical volume `flexvol-<volume id>` with its mark as one tag. LVM replaces tags
//! atomically, in one commit of the group's metadata. A group, or a thin pool in one, is a pool
//! only if it carries a tag with a pool's key: nothing is ever made in a group that an
//! administrator did not mean. The node remembers which one its pool is.

mod change;
mod changed;
mod command;
mod device;
mod disks;
mod group_or_thin_pool;
mod key;
pub mod mapping;
mod metadata;
mod names;
mod own;
mod percent;
mod pieces;
mod pool_tag;
mod remembered;
mod report;
mod rows;
mod space;
mod strangers;
mod sync;
mod thin_pool;
pub mod unsynced;
mod view;

pub use change::Layout;
pub use command::changes;
pub use device::{clear, device, expect_closed, let_go, mapped, open, remove, resume};
pub use group_or_thin_pool::{GroupOrThinPool, Which};
pub use key::PoolKey;
pub use metadata::Metadata;
pub use names::Names;
pub use own::{Disks, Whose};
pub use percent::Percent;
pub use report::parse;
pub use space::{Rules, expect_metadata_to_grow, expect_metadata_to_make};
pub use sync::sync;
pub use thin_pool::ThinPool;
pub use view::{LogicalVolume, View};

use crate::VolumeId;

/// What the name of a volume's logical volume begins with; its id follows.
const PREFIX: &str = "flexvol-";

/// The name of a volume's logical volume.
#[must_use]
pub fn name_of(volume: &VolumeId) -> String {
    format!("{PREFIX}{volume}")
}

/// The volume that a logical volume's name tells.
#[must_use]
pub fn volume_in(name: &str) -> Option<VolumeId> {
    VolumeId::parse(name.strip_prefix(PREFIX)?).ok()
}
