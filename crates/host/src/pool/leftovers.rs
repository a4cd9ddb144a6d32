//! Leftovers of killed processes in a pool.

use super::{Pool, directory::GONE, links};
use crate::VolumeId;
use flexvol_sdk::{Error, Result, VolumeName};
use rustix::{fs::AtFlags, io::Errno};
use std::time::Duration;

impl Pool {
    /// Returns names older than `age` without a volume. A name is reserved before its volume is created, so a young one
    /// may belong to a volume that is being created.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub fn dangling_names(&self, age: Duration) -> Result<Vec<(VolumeName, VolumeId)>> {
        let mut dangling = Vec::new();
        for (name, handle) in links::older_than(&self.names_directory()?, age)? {
            let volume = VolumeId::of(&handle);
            if self.is_absent(&volume)? {
                dangling.push((name, volume));
            }
        }
        Ok(dangling)
    }

    /// Whether the volume has no entry, not even one that is being removed.
    fn is_absent(&self, volume: &VolumeId) -> Result<bool> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        for name in [volume.to_string(), format!("{GONE}{volume}")] {
            match rustix::fs::statat(&self.volumes, name, flags) {
                Ok(_) => return Ok(false),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(Error::system("look for the volume", error)),
            }
        }
        Ok(true)
    }
}
