//! Changes of the volumes of a place.

use super::{group_or_thin_pool::GroupOrThinPool, view::LogicalVolume};
use flexvol_sdk::{Bytes, Result};
use std::os::fd::BorrowedFd;

/// How a new volume lies on its disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Over how many disks it is spread; 1 is linear.
    pub stripes: u32,
    /// How much lies together on one of them; `None` leaves it to LVM.
    pub stripe_size: Option<Bytes>,
}

impl GroupOrThinPool {
    /// Makes a volume with one tag. Its beginning is wiped; the rest holds what was there.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`](flexvol_sdk::ErrorKind::Exhausted) where there is no room.
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

    /// Replaces a volume's tag, in one commit.
    ///
    /// # Errors
    /// When the old one may still be there.
    pub fn retag(&self, name: &str, old: Option<&str>, new: &str) -> Result<()> {
        let path = self.path(name);
        let mut words = vec!["lvchange"];
        if let Some(old) = old {
            words.extend(["--deltag", old]);
        }
        words.extend(["--addtag", new, &path]);
        self.change("mark the volume", &words, &[])
    }

    /// Takes a tag from a volume.
    ///
    /// # Errors
    /// When it may still be there.
    pub fn untag(&self, name: &str, tag: &str) -> Result<()> {
        let words = ["lvchange", "--deltag", tag, &self.path(name)];
        self.change("mark the volume", &words, &[])
    }

    /// Makes a volume larger. LVM is told nothing of file systems.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`](flexvol_sdk::ErrorKind::Exhausted) where there is no room.
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

    /// Gives a volume, or a thin pool, its device.
    ///
    /// # Errors
    /// When it has none afterwards.
    pub(super) fn activate(&self, name: &str, uuid: Option<&str>) -> Result<()> {
        // `-K`: whoever takes over a thin snapshot would find that it is never activated.
        let words = ["lvchange", "-ay", "-K", &self.path(name)];
        self.load_devices("activate the volume", &words, (name, uuid))
    }

    /// Takes the device from a volume that nobody uses.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`](flexvol_sdk::ErrorKind::Storage) where somebody uses it.
    pub(super) fn deactivate(&self, name: &str) -> Result<()> {
        let words = ["lvchange", "-an", &self.path(name)];
        self.change_in_doubt("deactivate the volume", &words)
    }

    /// Makes a volume's device what LVM says it is: as large, and not suspended. All that it lies on is there.
    ///
    /// # Errors
    /// When it may not be.
    pub(super) fn refresh(&self, name: &str) -> Result<()> {
        let words = ["lvchange", "--refresh", &self.path(name)];
        self.reload_devices("refresh the volume's device", &words)
    }

    /// Removes a volume; LVM refuses one that is open.
    ///
    /// # Errors
    /// When it may still be there.
    pub(super) fn remove(&self, volume: &LogicalVolume) -> Result<()> {
        let words = ["lvremove", "-y", &self.path(&volume.name)];
        let changed = (volume.name.as_str(), Some(volume.uuid.as_str()));
        self.change_devices("remove the volume", &words, changed, &[])
    }

    /// Gives a volume another name.
    ///
    /// # Errors
    /// When it may still have the old one.
    pub fn rename(&self, volume: &LogicalVolume, new: &str) -> Result<()> {
        let words = ["lvrename", "-y", &self.group, &volume.name, new];
        let changed = (new, Some(volume.uuid.as_str()));
        self.change_devices("rename the volume", &words, changed, &[])
    }
}
