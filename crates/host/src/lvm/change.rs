//! Changes of the logical volumes in a group or thin pool. Each is made on the group's `disks` as the caller just read
//! them: LVM sees no other, whatever has come to the node meanwhile.

use super::{command, group_or_thin_pool::GroupOrThinPool, own::Disks, view::LogicalVolume};
use flexvol_sdk::{Bytes, Result};
use std::os::fd::BorrowedFd;

/// Layout of a new logical volume on its disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of disks the volume is spread over; 1 is linear.
    pub stripes: u32,
    /// Size of a stripe; `None` lets LVM choose.
    pub stripe_size: Option<Bytes>,
}

impl GroupOrThinPool {
    /// Creates a logical volume with one tag. Wipes its beginning; the rest keeps its former content.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`](flexvol_sdk::ErrorKind::Exhausted) when there is no room.
    pub fn create(
        &self,
        disks: &Disks,
        name: &str,
        size: Bytes,
        tag: &str,
        layout: Layout,
        hold: BorrowedFd<'_>,
    ) -> Result<()> {
        let size = format!("{}b", size.0);
        let stripes = layout.stripes.to_string();
        let stripe_size = layout.stripe_size.map(|size| format!("{}b", size.0));
        let mut words = vec!["lvcreate", "-y", "-n", name, "--addtag", tag];
        match &self.thin_pool {
            Some(pool) => words.extend(["--type", "thin", "-V", &size, "--thinpool", pool]),
            None => {
                words.extend(["-Wy", "-Zy", "-L", &size]);
                if layout.stripes > 1 {
                    words.extend(["--type", "striped", "-i", &stripes]);
                }
                if let Some(size) = stripe_size.as_ref().filter(|_| layout.stripes > 1) {
                    words.extend(["-I", size]);
                }
            }
        }
        words.push(&self.group);
        self.change_devices(disks, "make the volume", &words, (name, None), &[hold])
    }

    /// Replaces a volume's tag, in one commit of the metadata.
    ///
    /// # Errors
    /// When the old tag may still be there.
    pub fn retag(&self, disks: &Disks, name: &str, old: Option<&str>, new: &str) -> Result<()> {
        let path = self.path(name);
        let mut words = vec!["lvchange"];
        if let Some(old) = old {
            words.extend(["--deltag", old]);
        }
        words.extend(["--addtag", new, &path]);
        self.change(disks, "mark the volume", &words)
    }

    /// Removes a tag from a volume.
    ///
    /// # Errors
    /// When the tag may still be there.
    pub fn untag(&self, disks: &Disks, name: &str, tag: &str) -> Result<()> {
        let words = ["lvchange", "--deltag", tag, &self.path(name)];
        self.change(disks, "mark the volume", &words)
    }

    /// Extends a volume. LVM does not touch its file system.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`](flexvol_sdk::ErrorKind::Exhausted) when there is no room.
    pub fn extend(
        &self,
        disks: &Disks,
        volume: &LogicalVolume,
        to: Bytes,
        hold: BorrowedFd<'_>,
    ) -> Result<()> {
        let (size, path) = (format!("{}b", to.0), self.path(&volume.name));
        let words = ["lvextend", "-y", "-L", &size, &path];
        let changed = (volume.name.as_str(), Some(volume.uuid.as_str()));
        self.change_devices(disks, "grow the volume", &words, changed, &[hold])
    }

    /// Activates a volume or a thin pool.
    ///
    /// # Errors
    /// When it may have no device afterwards.
    pub(super) fn activate(&self, disks: &Disks, name: &str, uuid: Option<&str>) -> Result<()> {
        // `-K` because thin snapshots, which can be adopted, have the activation-skip flag.
        let words = ["lvchange", "-ay", "-K", &self.path(name)];
        self.load_devices(disks, "activate the volume", &words, (name, uuid), &[])
    }

    /// Deactivates a volume that is not in use.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`](flexvol_sdk::ErrorKind::Storage) when it is in use.
    pub(super) fn deactivate(&self, disks: &Disks, name: &str) -> Result<()> {
        let words = ["lvchange", "-an", &self.path(name)];
        command::change("deactivate the volume", &words, disks.paths(), &[])
    }

    /// Reloads a volume's device from LVM's metadata: its size becomes right, and it is resumed. All disks below must
    /// be there.
    ///
    /// # Errors
    /// When the device may still differ from the metadata.
    pub(super) fn refresh(&self, disks: &Disks, name: &str) -> Result<()> {
        let words = ["lvchange", "--refresh", &self.path(name)];
        command::change("refresh the volume's device", &words, disks.paths(), &[])
    }

    /// Removes a volume. LVM refuses while it is open.
    ///
    /// # Errors
    /// When the volume may still be there.
    pub(super) fn remove(&self, disks: &Disks, volume: &LogicalVolume) -> Result<()> {
        let words = ["lvremove", "-y", &self.path(&volume.name)];
        let changed = (volume.name.as_str(), Some(volume.uuid.as_str()));
        self.change_devices(disks, "remove the volume", &words, changed, &[])
    }

    /// Renames a volume.
    ///
    /// # Errors
    /// When the volume may still have its old name.
    pub fn rename(&self, disks: &Disks, volume: &LogicalVolume, new: &str) -> Result<()> {
        let words = ["lvrename", "-y", &self.group, &volume.name, new];
        let changed = (new, Some(volume.uuid.as_str()));
        self.change_devices(disks, "rename the volume", &words, changed, &[])
    }
}
