//! Finding, or making, the node through which a block device is opened.

use crate::{device::DeviceNumber, run_dir};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

/// The major number of loop devices (Documentation/admin-guide/devices.txt).
pub(crate) const LOOP_MAJOR: u32 = 7;

/// Where nodes are made that /dev lacks. /run is usually mounted nodev and then no use; where
/// there is no devtmpfs, /dev is an ordinary directory. The nodes stay: their names say their
/// numbers, so they cannot become wrong, and another process may be about to open them.
const PRIVATE: [&str; 2] = ["/run/flexvol/dev", "/dev/flexvol"];

/// Opens the block device `number` and tells by which path, which child programs can use too.
///
/// Nothing in /dev is believed: a node counts only if its number is `number`.
pub(crate) fn open(number: DeviceNumber, flags: OFlags) -> io::Result<(File, PathBuf)> {
    // Without the loop module's max_part, /dev/loopN is minor N.
    if number.major == LOOP_MAJOR {
        let path = PathBuf::from(format!("/dev/loop{}", number.minor));
        if let Some(file) = open_if(&path, flags, number)? {
            return Ok((file, path));
        }
    }
    if let Some(path) = kernel_name(number)?
        && let Some(file) = open_if(&path, flags, number)?
    {
        return Ok((file, path));
    }
    let mut refused = io::Error::from(ErrorKind::NotFound);
    for directory in PRIVATE {
        match make(Path::new(directory), number) {
            Ok(path) => match open_if(&path, flags, number) {
                Ok(Some(file)) => return Ok((file, path)),
                Ok(None) => {}
                Err(error) => refused = error,
            },
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// `None`: no such path, or something else is there.
fn open_if(path: &Path, flags: OFlags, number: DeviceNumber) -> io::Result<Option<File>> {
    match open_block(path, flags) {
        Ok((file, found)) => Ok((found == number).then_some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens whatever block device `path` is; anything else counts as not found.
pub(crate) fn open_block(path: &Path, flags: OFlags) -> io::Result<(File, DeviceNumber)> {
    let file = File::from(rustix::fs::open(
        path,
        flags | OFlags::CLOEXEC,
        Mode::empty(),
    )?);
    let metadata = file.metadata()?;
    if !metadata.file_type().is_block_device() {
        return Err(ErrorKind::NotFound.into());
    }
    Ok((file, DeviceNumber::from_raw(metadata.rdev())))
}

/// The path the kernel would use, whether it is there or not.
fn kernel_name(number: DeviceNumber) -> io::Result<Option<PathBuf>> {
    let uevent = match fs::read_to_string(format!("/sys/dev/block/{number}/uevent")) {
        Ok(uevent) => uevent,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let name = uevent
        .lines()
        .find_map(|line| line.strip_prefix("DEVNAME="));
    Ok(name.map(|name| Path::new("/dev").join(name)))
}

fn make(directory: &Path, number: DeviceNumber) -> io::Result<PathBuf> {
    run_dir::make(directory)?;
    let path = directory.join(number.to_string());
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::mknodat(CWD, &path, FileType::BlockDevice, mode, number.to_raw()) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(path),
        Err(error) => Err(error.into()),
    }
}
