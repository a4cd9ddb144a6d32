//! Block devices and the backing files of loop devices, from sysfs.

use anyhow::{Context, Result};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Returns the loop devices in use: device node, and backing file as the kernel names it.
pub fn loops() -> Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block").context("list /sys/block")? {
        let entry = entry.context("list /sys/block")?;
        if let Some(file) = text(&entry.path().join("loop/backing_file")) {
            let device = Path::new("/dev").join(entry.file_name());
            found.push((device, file.trim_end().to_owned()));
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the backing file of the loop device with this `major:minor`.
pub fn backing(number: &str) -> Option<String> {
    let path = format!("/sys/dev/block/{number}/loop/backing_file");
    text(Path::new(&path)).map(|file| file.trim_end().to_owned())
}

/// Reads a sysfs file. It may contain a name chosen by a user, which need not be valid UTF-8.
fn text(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the backing file of a device by its path, if it is a loop device.
pub fn file_below(device: &Path) -> Option<String> {
    backing(&number(&fs::metadata(device).ok()?))
}

/// `major:minor` of a device.
pub fn number(about: &fs::Metadata) -> String {
    let number = about.rdev();
    let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
    format!("{major}:{minor}")
}

/// Returns the size of a block device in bytes. Sysfs has it in 512-byte sectors.
pub fn size(number: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/sys/dev/block/{number}/size")).ok()?;
    text.trim().parse::<u64>().ok().map(|sectors| sectors * 512)
}
