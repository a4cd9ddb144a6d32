//! `expandvolume`: the image and its loop device. `expandfs`: also the file system while it is mounted.

use crate::{
    Answer, Driver, Stop,
    faults::Fault,
    mount::{dawdle, directory, failure},
    node::Mount,
    stop,
    variants::{UNIT, Variant},
    volume::Volume,
};
use nix::sys::statvfs::statvfs;
use serde_json::json;
use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    path::Path,
};

/// The most that an xfs's log and its last, short group may take.
const OVERHEAD: u64 = 80 << 20;

fn open(volume: &Volume) -> Result<File, Stop> {
    let image = OpenOptions::new().write(true).open(&volume.image);
    image.map_err(|e| stop("open the volume", &e))
}

fn size(image: &File) -> Result<u64, Stop> {
    let found = image.metadata();
    Ok(found.map_err(|e| stop("measure the volume", &e))?.len())
}

impl Driver {
    pub fn expandvolume(&self, options: &str, sizes: [&str; 2]) -> Answer {
        let volume = self.volume(&self.options(options)?)?;
        let [Ok(new), Ok(old)] = sizes.map(str::parse::<u64>) else {
            return failure("a size is no number of bytes");
        };
        let _lock = self.lock(&volume.image)?;
        let image = open(&volume)?;
        let has = match self.has(Fault::BelievesOld) {
            true => old,
            false => size(&image)?,
        };
        if new > has {
            image
                .set_len(self.rounded(new, has))
                .and_then(|()| image.sync_all())
                .map_err(|e| stop("grow the volume", &e))?;
            for device in self.devices(&volume.image)? {
                self.tool("losetup", &["-c", &device])?;
            }
        }
        Ok(json!({ "volumeNewSize": size(&image)? }))
    }

    pub fn expandfs(&self, options: &str, device: &str, target: &str, sizes: [&str; 2]) -> Answer {
        let target = directory(target)?;
        let volume = self.volume(&self.options(options)?)?;
        let [Ok(new), Ok(old)] = sizes.map(str::parse::<u64>) else {
            return failure("a size is no number of bytes");
        };
        if self.has(Fault::NeverGrows) && new > old {
            return failure("the backend is busy; try again later");
        }
        if self.has(Fault::LosesTheEmptyDevice) && device.is_empty() {
            return Ok(json!({}));
        }
        let _lock = match self.lock_unless_taken(&volume.image)? {
            Some(lock) => lock,
            None if self.has(Fault::BelievesTheFirst) => {
                return Ok(json!({ "volumeNewSize": new }));
            }
            None => self.lock(&volume.image)?,
        };
        let mounts = self.mounts_at(&target)?;
        let Some(mount) = mounts.last() else {
            if self.has(Fault::TrustsTheOrder) {
                return Err(Stop::Panic("no mount at the volume's directory".to_owned()));
            }
            return failure("the volume is not mounted there");
        };
        if mount.image().as_ref() != Some(&volume.image) {
            return failure("something else is mounted on the directory");
        }
        let image = open(&volume)?;
        let now = size(&image)?;
        self.grow(&image, mount, &target, &volume, now, new)?;
        Ok(if new == old && new == now {
            json!({ "volumeNewSize": new, "message": crate::THERE })
        } else {
            json!({ "volumeNewSize": new })
        })
    }

    fn grow(
        &self,
        image: &File,
        mount: &Mount,
        target: &Path,
        volume: &Volume,
        now: u64,
        new: u64,
    ) -> Result<(), Stop> {
        if self.has(Fault::GrowsNothing) {
            return Ok(());
        }
        if self.has(Fault::MatchesExistingSize) && new <= now {
            return failure("the new size matches the existing size");
        }
        let unit = match self.has(Fault::CutsSizesDown) {
            true => new - new % (1 << 20),
            false => self.rounded(new, now),
        };
        let device = mount.node()?;
        if self.has(Fault::BelievesTheFirst) {
            dawdle();
        }
        let growing = self.record("growing", &volume.image)?;
        if self.has(Fault::FormatsAfterACut) {
            if growing.exists() {
                self.format_anew(volume, target)?;
            }
            File::create(&growing).map_err(|e| stop("record the growth", &e))?;
        }
        if unit > now || unit < now && self.has(Fault::ShrinksToo) {
            image
                .set_len(unit)
                .and_then(|()| image.sync_all())
                .map_err(|e| stop("grow the volume", &e))?;
        } else if self.has(Fault::GrowsOnlyOnce) {
            return Ok(());
        }
        self.tool("losetup", &["-c".as_ref(), device.as_os_str()])?;
        if self.has(Fault::GrowsOnlyOnce) {
            dawdle();
            dawdle();
        }
        if self.has(Fault::FormatsToGrow) {
            return self.format_anew(volume, target);
        }
        self.tool("xfs_growfs", &[target])?;
        if self.has(Fault::FormatsAfterACut) {
            dawdle();
            fs::remove_file(growing).map_err(|e| stop("record the growth", &e))?;
        }
        let found = statvfs(target).map_err(|e| stop("measure the file system", &e))?;
        if found.blocks() * found.fragment_size() + OVERHEAD < unit && !self.has(Fault::ShrinksToo)
        {
            return failure("the file system has not the size that was asked for");
        }
        Ok(())
    }

    /// The size that the backend makes of a size that is asked for.
    fn rounded(&self, new: u64, now: u64) -> u64 {
        match self.is(Variant::RoundsUp) {
            true => new.next_multiple_of(UNIT).max(now),
            false => new.next_multiple_of(4096),
        }
    }

    fn format_anew(&self, volume: &Volume, target: &Path) -> Result<(), Stop> {
        self.tool("umount", &[target])?;
        let force = ["-q", "-f", "-K"].map(OsStr::new);
        self.tool(
            "mkfs.xfs",
            &[&force, &[volume.image.as_os_str()][..]].concat(),
        )?;
        self.attach_and_mount(volume, target, "")
    }
}
