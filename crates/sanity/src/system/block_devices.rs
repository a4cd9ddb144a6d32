//! Block devices and the files below loop devices, as sysfs has them.

use anyhow::{Context, Result};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// The loop devices that have something below them: device node and file, as the kernel names it.
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

/// The file below a loop device, which `major:minor` is.
pub fn backing(number: &str) -> Option<String> {
    let path = format!("/sys/dev/block/{number}/loop/backing_file");
    text(Path::new(&path)).map(|file| file.trim_end().to_owned())
}

/// What others on this machine chose the words of, which need not be text.
fn text(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The same of a device by its path, if it is one.
pub fn file_below(device: &Path) -> Option<String> {
    backing(&number(&fs::metadata(device).ok()?))
}

/// `major:minor` of a device.
pub fn number(about: &fs::Metadata) -> String {
    let number = about.rdev();
    let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
    format!("{major}:{minor}")
}

/// The size of a block device, as the kernel has it: 512-byte sectors in sysfs.
pub fn size(number: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/sys/dev/block/{number}/size")).ok()?;
    text.trim().parse::<u64>().ok().map(|sectors| sectors * 512)
}
