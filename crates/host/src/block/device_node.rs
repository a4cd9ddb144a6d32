//! Finds, or creates, the device node through which a block device is opened.

use crate::{block::number::DeviceNumber, run_dir};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags},
    io::Errno,
};
use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

/// The major number of loop devices (Documentation/admin-guide/devices.txt).
pub(crate) const LOOP_MAJOR: u32 = 7;

/// /dev/loop-control: `MISC_MAJOR`, `LOOP_CTRL_MINOR` (linux/miscdevice.h).
const LOOP_CONTROL: DeviceNumber = DeviceNumber {
    major: 10,
    minor: 237,
};

/// Directories for nodes that /dev lacks, in order of preference. /run is usually mounted nodev and then of no use.
/// Where there is no devtmpfs, /dev is an ordinary directory. Nodes are never removed: they are named by their numbers,
/// so they cannot become wrong, and another process may be about to open one.
const PRIVATE: [&str; 2] = ["/run/flexvol/dev", "/dev/flexvol"];

/// Opens the block device `number` and returns the path it was opened by, which child programs can use too. Names in
/// /dev are not trusted: a node counts only if its number is `number`.
pub(crate) fn open(number: DeviceNumber, flags: OFlags) -> io::Result<(File, PathBuf)> {
    // Without the loop module's max_part, /dev/loopN is minor N.
    if number.major == LOOP_MAJOR {
        let path = PathBuf::from(format!("/dev/loop{}", number.minor));
        if let Some(file) = open_if(&path, flags, number)? {
            return Ok((file, path));
        }
    }
    let Some(path) = kernel_name(number)? else {
        return Err(ErrorKind::NotFound.into());
    };
    if let Some(file) = open_if(&path, flags, number)? {
        return Ok((file, path));
    }
    open_private(FileType::BlockDevice, number, flags)
}

/// Opens /dev/loop-control, which hands out unbound loop devices.
pub(crate) fn open_loop_control() -> io::Result<File> {
    match rustix::fs::open(
        "/dev/loop-control",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    ) {
        Err(Errno::NOENT) => {
            let (file, _) = open_private(FileType::CharacterDevice, LOOP_CONTROL, OFlags::RDWR)?;
            Ok(file)
        }
        result => Ok(File::from(result?)),
    }
}

/// Opens the loop device with this index for writing. The index equals the minor number unless the loop module was
/// loaded with `max_part`.
pub(crate) fn open_loop(index: u32) -> io::Result<(File, DeviceNumber)> {
    let path = PathBuf::from(format!("/dev/loop{index}"));
    match open_block(&path, OFlags::RDWR) {
        Ok((file, number)) if number.major == LOOP_MAJOR => return Ok((file, number)),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let number = number_in(Path::new(&format!("/sys/block/loop{index}/dev")))?;
    let (file, _) = open(number, OFlags::RDWR)?;
    Ok((file, number))
}

/// Returns the kernel's names of the devices stacked on a device, such as a RAID or a device-mapper mapping. Empty
/// where the kernel does not tell.
pub(crate) fn holders(number: DeviceNumber) -> Vec<String> {
    let holders = fs::read_dir(format!("/sys/dev/block/{number}/holders"));
    let holders = holders.into_iter().flatten().flatten();
    let names = holders.map(|holder| holder.file_name().to_string_lossy().into_owned());
    names.collect()
}

/// Reads a `dev` file of sysfs: `7:3` and a newline.
pub(crate) fn number_in(path: &Path) -> io::Result<DeviceNumber> {
    let text = fs::read_to_string(path)?;
    let number = text.trim_end().split_once(':').and_then(|(major, minor)| {
        Some(DeviceNumber {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        })
    });
    number.ok_or_else(|| ErrorKind::InvalidData.into())
}

/// Opens `path` if it is the block device `number`. `None` if it does not exist or is anything else.
fn open_if(path: &Path, flags: OFlags, number: DeviceNumber) -> io::Result<Option<File>> {
    match open_block(path, flags) {
        Ok((file, found)) => Ok((found == number).then_some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens the block device at `path`; anything else counts as not found.
fn open_block(path: &Path, flags: OFlags) -> io::Result<(File, DeviceNumber)> {
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

/// Returns the path of the kernel's name for the device, whether it exists or not.
fn kernel_name(number: DeviceNumber) -> io::Result<Option<PathBuf>> {
    // Partition labels, which are arbitrary bytes, appear here too.
    let uevent = match fs::read(format!("/sys/dev/block/{number}/uevent")) {
        Ok(uevent) => String::from_utf8_lossy(&uevent).into_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let name = uevent
        .lines()
        .find_map(|line| line.strip_prefix("DEVNAME="));
    Ok(name.map(|name| Path::new("/dev").join(name)))
}

/// Creates a node and opens it, in the first private directory that allows both.
fn open_private(
    kind: FileType,
    number: DeviceNumber,
    flags: OFlags,
) -> io::Result<(File, PathBuf)> {
    let mut refused = io::Error::from(ErrorKind::NotFound);
    for directory in PRIVATE {
        match make(Path::new(directory), kind, number).and_then(|path| {
            Ok((
                rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty())?,
                path,
            ))
        }) {
            Ok((file, path)) => return Ok((File::from(file), path)),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

fn make(directory: &Path, kind: FileType, number: DeviceNumber) -> io::Result<PathBuf> {
    run_dir::make(directory)?;
    let letter = if kind == FileType::BlockDevice {
        'b'
    } else {
        'c'
    };
    let path = directory.join(format!("{letter}{number}"));
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::mknodat(CWD, &path, kind, mode, number.to_raw()) {
        Ok(()) | Err(Errno::EXIST) => Ok(path),
        Err(error) => Err(error.into()),
    }
}
