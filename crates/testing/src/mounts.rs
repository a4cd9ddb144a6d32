//! The tests' own view of mounts and loop devices: none of it is the driver's code.

use crate::kernel;
use std::{
    fs::{self, File},
    io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// One line of `/proc/self/mountinfo`, as far as tests care.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// `major:minor` of the file system.
    pub device: String,
    /// Where it is mounted.
    pub point: PathBuf,
    /// Whether this mount is read-only, whatever its file system is.
    pub read_only: bool,
    /// The kind of file system.
    pub filesystem: String,
}

/// What lies under a loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backing {
    /// The inode of the image.
    pub inode: u64,
    /// Whether the loop goes with its last user.
    pub autoclear: bool,
}

/// Everything mounted at or below `root` in this process's mount namespace, oldest first.
///
/// # Panics
/// When the kernel's table cannot be read.
#[must_use]
pub fn below(root: &Path) -> Vec<Mounted> {
    let table = fs::read("/proc/self/mountinfo").expect("read mountinfo");
    let mut mounted = mounts_in(&table);
    mounted.retain(|mount| mount.point.starts_with(root));
    mounted
}

/// Everything in a table of mounts as the kernel writes it, oldest first. What strangers have mounted
/// may be called as they like: a type that is no text is read all the same.
///
/// # Panics
/// When it is none.
#[must_use]
pub fn mounts_in(table: &[u8]) -> Vec<Mounted> {
    let lines = table.split(|&byte| byte == b'\n');
    lines
        .filter(|line| !line.is_empty())
        .map(|line| parse(line).expect("a line of mountinfo"))
        .collect()
}

/// What lies under each loop device whose image is on the file system with this device number.
///
/// # Panics
/// When the loop devices cannot be listed.
#[must_use]
pub fn loops_of(device: u64) -> Vec<Backing> {
    let loops = loops_on(device).into_iter();
    loops.map(|(_, backing)| backing).collect()
}

/// The loop devices whose image lies on the file system with this device number.
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
        // A loop may go between the listing and the question.
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

/// The kernel writes space, tab, newline and backslash as `\` and three octal digits.
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
