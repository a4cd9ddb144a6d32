//! What the kernel says of mounts, loop devices and processes.

use anyhow::{Context, Result};
use nix::unistd::geteuid;
use std::{
    ffi::OsString,
    fs, io,
    os::unix::{ffi::OsStringExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mount {
    /// `major:minor`.
    pub device: String,
    /// What of the file system is mounted.
    pub root: PathBuf,
    pub point: PathBuf,
    /// Options of this mount.
    pub options: String,
    pub filesystem: String,
    pub source: String,
}

/// All mounts that this process sees, in the order in which they were made.
pub fn mounts() -> Result<Vec<Mount>> {
    // Of this thread: a check may have mounts of its own.
    let text = fs::read("/proc/thread-self/mountinfo").context("read the mount table")?;
    let lines = text.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(parse).collect())
}

/// Fields as `proc_pid_mountinfo(5)` has them: six, optional ones, a dash, three.
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let device = fields.nth(2).map(text)?;
    let root = decoded(fields.next()?);
    let point = decoded(fields.next()?);
    let options = fields.next().map(text)?;
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let filesystem = rest.next().map(text)?;
    let source = rest.next().map_or_else(String::new, |field| {
        decoded(field).to_string_lossy().into_owned()
    });
    Some(Mount {
        device,
        root,
        point,
        options,
        filesystem,
        source,
    })
}

/// The kernel writes space, tab, newline and backslash in octal.
fn decoded(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| first == b'\\');
        let code = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(code) = code {
            bytes.push(code);
            rest = &after[3..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    OsString::from_vec(bytes).into()
}

/// What is mounted on exactly this directory, the topmost last.
pub fn mounts_at(point: &Path) -> Result<Vec<Mount>> {
    Ok(mounts()?
        .into_iter()
        .filter(|mount| mount.point == point)
        .collect())
}

/// What is mounted on or below this directory.
pub fn mounts_below(directory: &Path) -> Result<Vec<Mount>> {
    Ok(mounts()?
        .into_iter()
        .filter(|mount| mount.point.starts_with(directory))
        .collect())
}

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
pub fn device_size(number: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/sys/dev/block/{number}/size")).ok()?;
    text.trim().parse::<u64>().ok().map(|sectors| sectors * 512)
}

pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Whether all mounts of that file system, also those that the machine's first process sees, are in the
/// tester's directory.
pub fn is_alone(mount: &Mount, directory: &Path) -> Result<bool> {
    let machine = fs::read("/proc/1/mountinfo").context("read the machine's mount table")?;
    let machine = machine.split(|byte| *byte == b'\n').filter_map(parse);
    let all = mounts()?.into_iter().chain(machine);
    Ok(is_alone_in(mount, directory, all))
}

fn is_alone_in(mount: &Mount, directory: &Path, all: impl Iterator<Item = Mount>) -> bool {
    let mut same = all.filter(|other| other.device == mount.device);
    mount.root == Path::new("/") && same.all(|other| other.point.starts_with(directory))
}

/// A process, as far as one needs it to know whose it is.
#[derive(Debug)]
pub struct Process {
    pub id: i32,
    pub parent: i32,
}

impl Process {
    /// Whether this directory is a mount to it.
    pub fn sees_mount_at(&self, point: &Path) -> bool {
        let text = fs::read(format!("/proc/{}/mountinfo", self.id)).unwrap_or_default();
        let mut lines = text.split(|byte| *byte == b'\n').filter_map(parse);
        lines.any(|mount| mount.point == point)
    }
}

/// The numbers of those processes.
pub fn processes(which: impl Fn(&Process) -> bool) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("list the processes")? {
        let name = entry.context("list the processes")?.file_name();
        let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // It may just have gone. The name of the program is in parentheses, and may have some too.
        let stat = text(Path::new(&format!("/proc/{id}/stat"))).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let parent = fields.split_whitespace().nth(1);
        let Some(parent) = parent.and_then(|field| field.parse().ok()) else {
            continue;
        };
        if which(&Process { id, parent }) {
            found.push(id);
        }
    }
    Ok(found)
}

/// Whether a program is on this machine.
pub fn has_tool(name: &str) -> bool {
    crate::call::PATH
        .split(':')
        .any(|directory| Path::new(directory).join(name).is_file())
}

/// Makes a directory with those above it, as kubelet does for a volume.
pub fn make_directory(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_read_with_octal_and_optional_fields() {
        let line = br"36 35 98:0 /mnt1 /mnt\0402 ro,noatime master:1 shared:2 - ext3 /dev/root rw";
        let mount = parse(line).unwrap();
        assert_eq!(mount.point, Path::new("/mnt 2"));
        assert_eq!(
            (mount.device.as_str(), mount.filesystem.as_str()),
            ("98:0", "ext3")
        );
        assert_eq!(mount.options, "ro,noatime");
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn a_file_system_that_is_mounted_elsewhere_is_not_the_testers_alone() {
        let mount = |line: &str| parse(line.as_bytes()).unwrap();
        let volume = mount("36 35 7:1 / /scratch/pod rw - xfs /dev/loop1 rw");
        let bound = mount("37 35 8:1 /pool/volume /scratch/pod rw - ext4 /dev/sda1 rw");
        let root = mount("20 1 8:1 / / rw - ext4 /dev/sda1 rw");
        let all = || [volume.clone(), bound.clone(), root.clone()].into_iter();
        let scratch = Path::new("/scratch");
        assert!(is_alone_in(&volume, scratch, all()));
        assert!(!is_alone_in(&bound, scratch, all()));
        assert!(!is_alone_in(
            &mount("38 1 8:1 / /scratch/x rw - ext4 x rw"),
            scratch,
            all()
        ));
    }

    #[test]
    fn this_process_sees_its_root() {
        assert!(
            mounts()
                .unwrap()
                .iter()
                .any(|mount| mount.point == Path::new("/"))
        );
    }
}
