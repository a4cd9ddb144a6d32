//! Changes of the logical volumes in a group or thin pool.

use super::{group_or_thin_pool::GroupOrThinPool, view::LogicalVolume};
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
        self.change_devices("make the volume", &words, (name, None), &[hold])
    }

    /// Replaces a volume's tag, in one commit of the metadata.
    ///
    /// # Errors
    /// When the old tag may still be there.
    pub fn retag(&self, name: &str, old: Option<&str>, new: &str) -> Result<()> {
        let path = self.path(name);
        let mut words = vec!["lvchange"];
        if let Some(old) = old {
            words.extend(["--deltag", old]);
        }
        words.extend(["--addtag", new, &path]);
        self.change("mark the volume", &words, &[])
    }

    /// Removes a tag from a volume.
    ///
    /// # Errors
    /// When the tag may still be there.
    pub fn untag(&self, name: &str, tag: &str) -> Result<()> {
        let words = ["lvchange", "--deltag", tag, &self.path(name)];
        self.change("mark the volume", &words, &[])
    }

    /// Extends a volume. LVM does not touch its file system.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`](flexvol_sdk::ErrorKind::Exhausted) when there is no room.
    pub fn extend(&self, volume: &LogicalVolume, to: Bytes, hold: BorrowedFd<'_>) -> Result<()> {
        let (size, path) = (format!("{}b", to.0), self.path(&volume.name));
        let words = ["lvextend", "-y", "-L", &size, &path];
        self.change_devices(
            "grow the volume",
            &words,
            (&volume.name, Some(&volume.uuid)),
            &[hold],
        )
    }

    /// Activates a volume or a thin pool.
    ///
    /// # Errors
    /// When it may have no device afterwards.
    pub(super) fn activate(&self, name: &str, uuid: Option<&str>) -> Result<()> {
        // `-K` because thin snapshots, which can be adopted, have the activation-skip flag.
        let words = ["lvchange", "-ay", "-K", &self.path(name)];
        self.load_devices("activate the volume", &words, (name, uuid))
    }

    /// Deactivates a volume that is not in use.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`](flexvol_sdk::ErrorKind::Storage) when it is in use.
    pub(super) fn deactivate(&self, name: &str) -> Result<()> {
        let words = ["lvchange", "-an", &self.path(name)];
        self.change_in_doubt("deactivate the volume", &words)
    }

    /// Reloads a volume's device from LVM's metadata: its size becomes right, and it is resumed. All disks below must
    /// be there.
    ///
    /// # Errors
    /// When the device may still differ from the metadata.
    pub(super) fn refresh(&self, name: &str) -> Result<()> {
        let words = ["lvchange", "--refresh", &self.path(name)];
        self.reload_devices("refresh the volume's device", &words)
    }

    /// Removes a volume. LVM refuses while it is open.
    ///
    /// # Errors
    /// When the volume may still be there.
    pub(super) fn remove(&self, volume: &LogicalVolume) -> Result<()> {
        let words = ["lvremove", "-y", &self.path(&volume.name)];
        let changed = (volume.name.as_str(), Some(volume.uuid.as_str()));
        self.change_devices("remove the volume", &words, changed, &[])
    }

    /// Renames a volume.
    ///
    /// # Errors
    /// When the volume may still have its old name.
    pub fn rename(&self, volume: &LogicalVolume, new: &str) -> Result<()> {
        let words = ["lvrename", "-y", &self.group, &volume.name, new];
        let changed = (new, Some(volume.uuid.as_str()));
        self.change_devices("rename the volume", &words, changed, &[])
    }
}
