//! What the kernel says of mounts and loop devices, and how what a broken driver left is removed.

use crate::process;
use anyhow::{Context, Result, ensure};
use nix::{
    errno::Errno,
    fcntl::{OFlag, open, openat},
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
    sys::stat::Mode,
    unistd::{UnlinkatFlags, geteuid, unlinkat},
};
use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{ffi::OsStringExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
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
        if let Ok(file) = fs::read_to_string(entry.path().join("loop/backing_file")) {
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
    fs::read_to_string(path)
        .ok()
        .map(|file| file.trim_end().to_owned())
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

/// Gives the process mounts of its own, so that what a run leaves goes with it, and returns
/// whether that was done. To be called while there is one thread.
pub fn leave_others() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("leave the mount namespace")?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>).context("make the mounts private")
}

/// A file system in memory, which goes with the namespace.
pub fn mount_memory(at: &Path, flags: MsFlags) -> Result<()> {
    mount(Some("tmpfs"), at, Some("tmpfs"), flags, Some("mode=0755"))
        .with_context(|| format!("mount a tmpfs on {}", at.display()))
}

/// Mounts a directory at another place too.
pub fn bind(from: &Path, to: &Path) -> Result<()> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .with_context(|| format!("bind {} to {}", from.display(), to.display()))
}

/// Takes one mount off a directory, at once where it can be, else as soon as nobody uses it.
pub fn unmount(point: &Path) -> Result<()> {
    for _ in 0..20 {
        match umount2(point, MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => return Ok(()),
            Err(nix::Error::EBUSY) => thread::sleep(Duration::from_millis(50)),
            Err(_) => break,
        }
    }
    umount2(point, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH)
        .with_context(|| format!("unmount {}", point.display()))
}

/// How long a loop device that goes by itself may take for it.
const GOING: Duration = Duration::from_millis(500);

/// Removes what is left in a directory of the tester's own: mounts, and loop devices on its files.
///
/// Returns what a driver should have removed.
pub fn clear(directory: &Path) -> Result<Vec<String>> {
    let mut left = Vec::new();
    let mut mounted = mounts_below(directory)?;
    mounted.reverse();
    for mount in mounted.iter().filter(|mount| mount.point != directory) {
        left.push(format!(
            "a mount of {} on {}",
            mount.filesystem,
            within(&mount.point, directory)
        ));
        unmount(&mount.point)?;
    }
    left.extend(release(|(_, file)| Path::new(file).starts_with(directory))?);
    Ok(left)
}

/// Removes these loop devices on files of the tester's, which have had a moment to go by themselves;
/// returns which these were.
pub fn release(which: impl Fn(&(PathBuf, String)) -> bool) -> Result<Vec<String>> {
    let theirs = || -> Result<Vec<_>> {
        let mut loops = loops()?;
        loops.retain(&which);
        Ok(loops)
    };
    let end = Instant::now() + GOING;
    while !theirs()?.is_empty() && Instant::now() < end {
        thread::sleep(Duration::from_millis(10));
    }
    let mut left = Vec::new();
    for (device, file) in theirs()? {
        let name = Path::new(&file).file_name().unwrap_or_default();
        left.push(format!("a loop device on {}", name.display()));
        detach(&device, &file)?;
    }
    Ok(left)
}

fn within(path: &Path, directory: &Path) -> String {
    path.strip_prefix(directory)
        .unwrap_or(path)
        .display()
        .to_string()
}

/// Removes the loop devices on images of a run whose mounts are gone, and with them all but the last part
/// of the images' paths.
pub fn clear_loops_of(tag: &str) -> Result<()> {
    let start = format!("sanity-{tag}-");
    for (device, file) in loops()? {
        let path = file.strip_suffix(" (deleted)").unwrap_or(&file);
        let name = Path::new(path).file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        if name.starts_with(&start) && name.ends_with(".img") {
            detach(&device, &file)?;
        }
    }
    Ok(())
}

/// Removes a directory of the tester's own and all that is in it, but nothing that is, or comes to be,
/// mounted there: that is somebody's volume.
pub fn remove(directory: &Path) -> Result<()> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let top = open(directory, flags, Mode::empty())
        .with_context(|| format!("open {}", directory.display()))?;
    empty(&top, &mount_of(&top)?).with_context(|| format!("remove {}", directory.display()))?;
    fs::remove_dir(directory).with_context(|| format!("remove {}", directory.display()))
}

fn empty(directory: &OwnedFd, mount: &str) -> Result<()> {
    ensure!(mount_of(directory)? == mount, "something is mounted in it");
    for entry in fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))? {
        let name = entry?.file_name();
        let name = name.as_os_str();
        let unlinked = unlinkat(directory, name, UnlinkatFlags::NoRemoveDir);
        if !matches!(unlinked, Err(Errno::EISDIR | Errno::EPERM)) {
            unlinked?;
            continue;
        }
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        empty(&openat(directory, name, flags, Mode::empty())?, mount)?;
        unlinkat(directory, name, UnlinkatFlags::RemoveDir)?;
    }
    Ok(())
}

/// The id of the mount that an open file is on.
fn mount_of(file: &OwnedFd) -> Result<String> {
    let told = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let id = told.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    Ok(id.context("the kernel tells no mount")?.trim().to_owned())
}

/// Lets a loop device go, if it still shows that file: by now its number may be another's. While it is
/// open here it cannot become that.
fn detach(device: &Path, file: &str) -> Result<()> {
    let Ok(held) = File::open(device) else {
        return Ok(());
    };
    let about = held.metadata().context("look at a loop device")?;
    if backing(&number(&about)).is_some_and(|shown| shown == file) {
        let words = ["--detach".as_ref(), device.as_os_str()];
        process::tool("losetup", &words)?;
    }
    Ok(())
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
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
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
    fn a_directory_goes_with_what_is_in_it_and_not_with_what_links_lead_to() {
        let place = tempfile::tempdir().unwrap();
        let (own, others) = (place.path().join("own"), place.path().join("others"));
        fs::create_dir_all(own.join("a/b")).unwrap();
        fs::write(own.join("a/b/file"), "").unwrap();
        fs::create_dir(&others).unwrap();
        fs::write(others.join("file"), "").unwrap();
        std::os::unix::fs::symlink(&others, own.join("a/link")).unwrap();
        remove(&own).unwrap();
        assert!(!own.exists() && others.join("file").exists());
    }

    #[test]
    fn what_is_mounted_is_told_from_what_it_is_mounted_on() {
        let [root, proc] =
            ["/", "/proc"].map(|path| open(path, OFlag::O_DIRECTORY, Mode::empty()).unwrap());
        assert!(empty(&proc, &mount_of(&root).unwrap()).is_err());
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
