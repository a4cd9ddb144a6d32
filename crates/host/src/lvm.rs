//! Volume groups and thin pools, managed with LVM's own commands.
//!
//! Only `lvm` reads and writes LVM's metadata, because it takes the locks that every other user of LVM respects. The
//! state of a logical volume's device comes from the kernel instead ([`mapping`]): that starts no program and works
//! while the volume group is missing.
//!
//! A volume is the logical volume `flexvol-<volume id>` with its mark as one tag. LVM replaces tags atomically, in one
//! commit of the group's metadata. A group, or a thin pool in one, is a pool only if it has a tag with a pool's key, so
//! nothing is ever created in a group that no administrator chose. The node remembers which pool is its own.

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
pub use device::{
    deactivate_checked, device, expect_closed, mapped, open, remove, remove_orphan_device, resume,
};
pub use group_or_thin_pool::{GroupOrThinPool, Which};
pub use key::PoolKey;
pub use metadata::Metadata;
pub use names::Names;
pub use own::{DeviceOwner, Disks};
pub use percent::Percent;
pub use report::parse;
pub use space::{Rules, expect_metadata_to_grow, expect_metadata_to_make};
pub use sync::sync;
pub use thin_pool::ThinPool;
pub use view::{LogicalVolume, View};

use crate::VolumeId;

/// Prefix of a logical volume's name; the volume id follows.
const PREFIX: &str = "flexvol-";

/// Returns the name of a volume's logical volume.
#[must_use]
pub fn name_of(volume: &VolumeId) -> String {
    format!("{PREFIX}{volume}")
}

/// Returns the volume that a logical volume's name stands for.
#[must_use]
pub fn volume_in(name: &str) -> Option<VolumeId> {
    VolumeId::parse(name.strip_prefix(PREFIX)?).ok()
}
