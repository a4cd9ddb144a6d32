//! What processes that were killed may have left in a pool.

use super::{Pool, handle_in, list};
use flexvol_sdk::{Error, Handle, Result, VolumeName};
use rustix::{fs::AtFlags, io::Errno};
use std::time::{Duration, SystemTime};

impl Pool {
    /// Names that lead to no image and are older than `age`: a name comes before its volume, so a
    /// young one may belong to a volume that is just being made.
    ///
    /// # Errors
    /// What the system calls say.
    pub fn dangling_names(&self, age: Duration) -> Result<Vec<(VolumeName, Handle)>> {
        let failed = |error: Errno| Error::system("look through the pool's names", error);
        let names = self.names_directory()?;
        let mut dangling = Vec::new();
        for entry in list(&names)? {
            let Some(name) = str::from_utf8(&entry)
                .ok()
                .and_then(|name| VolumeName::parse(name).ok())
            else {
                continue;
            };
            let text = match rustix::fs::readlinkat(&names, name.as_str(), Vec::new()) {
                // Gone meanwhile, or no link and so none of ours.
                Err(Errno::NOENT | Errno::INVAL) => continue,
                result => result.map_err(failed)?,
            };
            let Some(handle) = handle_in(text.as_bytes()) else {
                continue;
            };
            let made = match rustix::fs::statat(&names, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                result => u64::try_from(result.map_err(failed)?.st_mtime).unwrap_or(0),
            };
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let old = now.is_ok_and(|now| now.saturating_sub(Duration::from_secs(made)) >= age);
            if old && self.is_absent(&handle)? {
                dangling.push((name, handle));
            }
        }
        Ok(dangling)
    }

    /// Whether nothing at all has the volume's name among the images.
    fn is_absent(&self, handle: &Handle) -> Result<bool> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        match rustix::fs::statat(&self.volumes, handle.to_string(), flags) {
            Ok(_) => Ok(false),
            Err(Errno::NOENT) => Ok(true),
            Err(error) => Err(Error::system("look for the volume's image", error)),
        }
    }
}
