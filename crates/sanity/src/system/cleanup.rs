//! Removes what a broken driver left, and nothing else.

use super::{
    block_devices::{backing, loops, number},
    command, mounts,
};
use anyhow::{Context, Result, ensure};
use nix::{
    errno::Errno,
    fcntl::{OFlag, open, openat},
    mount::{MntFlags, umount2},
    sys::stat::Mode,
    unistd::{UnlinkatFlags, unlinkat},
};
use std::{
    fs::{self, File},
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Removes one mount from a directory: at once if possible, otherwise lazily, when nobody uses it any more.
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

/// How long a loop device with autoclear may take to go.
const GOING: Duration = Duration::from_millis(500);

/// Removes the remains in a directory of the tester's own: mounts, and loop devices on its files.
///
/// Returns the things that a driver should have removed.
pub fn clear(directory: &Path) -> Result<Vec<String>> {
    let mut left = Vec::new();
    let mut mounted = mounts::below(directory)?;
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

/// Removes loop devices on files of the tester, after giving them a moment to go by themselves. Returns the
/// removed ones.
pub fn release(which: impl Fn(&(PathBuf, String)) -> bool) -> Result<Vec<String>> {
    let theirs = || -> Result<Vec<_>> {
        let mut all = loops()?;
        all.retain(&which);
        Ok(all)
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

/// Removes the loop devices on images of a run whose mount namespace is gone. The kernel then shows only the
/// last part of the images' paths.
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

/// Removes a directory of the tester's own with its content. Never descends into a mount, even one that appears
/// meanwhile, because it may be a user's volume.
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

/// Returns the id of the mount to which an open file belongs.
fn mount_of(file: &OwnedFd) -> Result<String> {
    let fdinfo = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let id = fdinfo.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    Ok(id.context("the kernel tells no mount")?.trim().to_owned())
}

/// Detaches a loop device if it still shows that file. The kernel may have reused its number, but cannot do so
/// while it is open here.
fn detach(device: &Path, file: &str) -> Result<()> {
    let Ok(held) = File::open(device) else {
        return Ok(());
    };
    let about = held.metadata().context("look at a loop device")?;
    if backing(&number(&about)).is_some_and(|shown| shown == file) {
        let words = ["--detach".as_ref(), device.as_os_str()];
        command::tool("losetup", &words)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
