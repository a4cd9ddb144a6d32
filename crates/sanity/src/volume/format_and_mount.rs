//! Formats and mounts as kubelet does for a driver without `mountdevice`: `FormatAndMount` of
//! `k8s.io/mount-utils`, `mount_linux.go`, called from `attacher-defaults.go`.

use crate::{
    system::{block_devices, command, mounts},
    volume::{Volume, content},
};
use anyhow::{Context, Result, bail, ensure};
use std::{
    ffi::OsStr,
    fs,
    io::{self, Read},
    os::unix::fs::FileTypeExt,
    path::Path,
};

/// Formats the device of a volume if `blkid` reports it as blank, and mounts it. Without a device it does
/// nothing and succeeds, as kubelet does.
pub fn mount_device(device: &str, volume: &Volume, directory: &Path, mode: &str) -> Result<()> {
    if device.is_empty() {
        return Ok(());
    }
    let fs_type = volume.fs_type.as_str();
    let fs_type = if fs_type.is_empty() { "ext4" } else { fs_type };
    let words = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device].map(OsStr::new);
    let (code, found) = command::code("blkid", &words)?;
    match code {
        // Exit code 2 of `blkid`: the device is blank.
        Some(2) if mode == "ro" => bail!("{device} has no file system, and is wanted read-only"),
        Some(2) => {
            expect_blank(Path::new(device), volume.content.as_deref())?;
            let force: &[&str] = match fs_type {
                "ext3" | "ext4" => &["-F", "-m0"],
                "xfs" => &["-f"],
                _ => &[],
            };
            let words = force.iter().copied().chain([device]);
            let words: Vec<_> = words.map(OsStr::new).collect();
            command::tool(&format!("mkfs.{fs_type}"), &words)?;
        }
        Some(0) if found.contains("PTTYPE=") && !found.contains("\nTYPE=") => {
            bail!("{device} has a partition table")
        }
        Some(0) => {}
        _ => bail!("blkid does not know what is on {device}"),
    }
    let options = format!("{mode},defaults");
    let words = ["-t", fs_type, "-o", &options, device].map(OsStr::new);
    command::tool("mount", &[&words[..], &[directory.as_os_str()]].concat())?;
    ensure!(
        !mounts::at(directory)?.is_empty(),
        "nothing is mounted after mount's success"
    );
    Ok(())
}

/// Checks that a device is not in use and blank before it is formatted. kubelet trusts `blkid`; the tester must
/// not format a user's data, whatever device a driver names. For the volume's own content only the ends have
/// to be blank: the middle may still have data that was deleted long ago.
fn expect_blank(device: &Path, content: Option<&Path>) -> Result<()> {
    let opened = content::open(device)?;
    let kind = opened.metadata().context("look at the device")?.file_type();
    let device_name = device.display();
    ensure!(kind.is_block_device(), "{device_name} is no block device");
    let is_own = match content {
        Some(content) => shows(device, content)?,
        None => false,
    };
    let blank = if is_own {
        content::is_blank(device)?
    } else {
        is_zero(opened).context("read the device")?
    };
    ensure!(
        blank,
        "{device_name} has data that blkid does not know, and is not formatted"
    );
    Ok(())
}

/// Whether the device is the content, or a loop device on it.
fn shows(device: &Path, content: &Path) -> Result<bool> {
    let (Ok(device), Ok(content)) = (fs::canonicalize(device), fs::canonicalize(content)) else {
        return Ok(false);
    };
    let below = |(other, file): &(_, String)| *other == device && Path::new(file) == content;
    Ok(device == content || block_devices::loops()?.iter().any(below))
}

/// Whether there are only zeros.
fn is_zero(mut file: impl Read) -> io::Result<bool> {
    let mut block = vec![0; 1 << 20];
    loop {
        match file.read(&mut block)? {
            0 => return Ok(true),
            read if block[..read].iter().any(|byte| *byte != 0) => return Ok(false),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_devices_are_formatted() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let error = expect_blank(file.path(), None).unwrap_err();
        assert!(error.to_string().ends_with("is no block device"));
        assert!(expect_blank(Path::new("/does/not/exist"), None).is_err());
    }

    #[test]
    fn one_byte_anywhere_is_somebodys() {
        let mut bytes = vec![0; (2 << 20) + 1];
        assert!(is_zero(bytes.as_slice()).unwrap());
        bytes[2 << 20] = 1;
        assert!(!is_zero(bytes.as_slice()).unwrap());
    }
}
