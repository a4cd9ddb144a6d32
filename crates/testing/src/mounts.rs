//! The tests' own view of mounts and loop devices, independent of the driver's code.

use crate::kernel;
use std::{
    fs::{self, File},
    io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// One line of `/proc/self/mountinfo`: the fields that tests need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// `major:minor` of the file system.
    pub device: String,
    /// The mount point.
    pub point: PathBuf,
    /// Whether this mount is read-only, regardless of its file system.
    pub read_only: bool,
    /// Type of the file system.
    pub filesystem: String,
}

/// Backing file of a loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backing {
    /// Inode of the image.
    pub inode: u64,
    /// Whether the loop device is released with its last user.
    pub autoclear: bool,
}

/// Returns the mounts at or below `root` in this process' mount namespace, oldest first.
///
/// # Panics
/// When the mount table is unreadable.
#[must_use]
pub fn below(root: &Path) -> Vec<Mounted> {
    let table = fs::read("/proc/self/mountinfo").expect("read mountinfo");
    let mut mounted = mounts_in(&table);
    mounted.retain(|mount| mount.point.starts_with(root));
    mounted
}

/// Parses a mount table, oldest mount first. Other users' file system types may not be UTF-8.
///
/// # Panics
/// When a line is malformed.
#[must_use]
pub fn mounts_in(table: &[u8]) -> Vec<Mounted> {
    let lines = table.split(|&byte| byte == b'\n');
    lines
        .filter(|line| !line.is_empty())
        .map(|line| parse(line).expect("a line of mountinfo"))
        .collect()
}

/// Returns the backing files, on the file system with this device number, of all loop devices.
///
/// # Panics
/// When the loop devices cannot be listed.
#[must_use]
pub fn loops_of(device: u64) -> Vec<Backing> {
    let loops = loops_on(device).into_iter();
    loops.map(|(_, backing)| backing).collect()
}

/// Returns the loop devices whose backing file is on the file system with this device number.
///
/// # Panics
/// When the loop devices cannot be listed.
pub(crate) fn loops_on(device: u64) -> Vec<(File, Backing)> {
    let mut loops = Vec::new();
    for entry in fs::read_dir("/sys/block").expect("list block devices") {
        let entry = entry.expect("list block devices");
        if !entry.path().join("loop").exists() {
            continue;
        }
        // A loop device may be released between the listing and the query.
        match question(&entry.file_name().to_string_lossy()) {
            Ok(Some((file, on, backing))) if on == device => loops.push((file, backing)),
            _ => {}
        }
    }
    loops.sort_by_key(|(_, backing)| *backing);
    loops
}

fn question(name: &str) -> io::Result<Option<(File, u64, Backing)>> {
    let file = File::open(Path::new("/dev").join(name))?;
    Ok(kernel::backing_file(&file)?
        .map(|(device, inode, autoclear)| (file, device, Backing { inode, autoclear })))
}

fn parse(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|&byte| byte == b' ').skip(2);
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let device = fields.next().map(text)?;
    let point = unescape(fields.nth(1)?);
    let read_only = fields
        .next()?
        .split(|&byte| byte == b',')
        .any(|option| option == b"ro");
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let filesystem = rest.next().map(text)?;
    Some(Mounted {
        device,
        point,
        read_only,
        filesystem,
    })
}

/// Undoes the kernel's escapes: it writes space, tab, newline and backslash as `\` and three octal digits.
fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|_| first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo_are_read_whole() {
        let line =
            br"36 35 98:0 /root /mnt/a\040b ro,noatime master:1 - ext3 /dev/root rw,errors=continue";
        let mount = parse(line).unwrap();
        assert_eq!(mount.point, Path::new("/mnt/a b"));
        assert_eq!(mount.device, "98:0");
        assert_eq!(mount.filesystem, "ext3");
        assert!(mount.read_only);
    }

    #[test]
    fn what_strangers_mount_spoils_no_table() {
        let table =
            b"36 35 0:44 / /a\xff rw - fuse.\xff\xfe \xfd rw\n37 35 98:0 / /b rw - ext4 x rw\n";
        let mounts = mounts_in(table);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[1].point, Path::new("/b"));
    }
}
