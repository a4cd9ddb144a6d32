//! Files in volumes. A volume may hold a user's data: all test files are in a directory of the tester's own,
//! no symbolic link is followed, and no existing file is opened for writing.

use crate::{
    bench::{Bench, MountPoint},
    journal::record::Record,
    system::cleanup,
    verdict::{Stop, Verdict, fault, not_applicable},
};
use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat},
    sys::stat::{Mode, fstatat, mkdirat},
    unistd::{UnlinkatFlags, geteuid, unlinkat},
};
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::Path,
};

const DIRECTORY: OFlag = OFlag::O_DIRECTORY
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

/// Content that checks write to volumes and read back.
pub const TEXT: &[u8] = b"flexvol-sanity was here\n";

fn top(volume: &Path) -> io::Result<File> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(volume)
}

/// Opens the tester's own directory in a volume, and creates it if needed.
fn own(volume: &Path, name: &str) -> io::Result<OwnedFd> {
    let top = top(volume)?;
    match mkdirat(&top, name, Mode::S_IRWXU) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let found = fstatat(&top, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    if found.st_uid != geteuid().as_raw() {
        return Err(io::Error::other(
            "the tester's directory is somebody else's",
        ));
    }
    Ok(openat(&top, name, DIRECTORY, Mode::empty())?)
}

fn new(directory: impl AsFd, name: &str) -> io::Result<File> {
    match unlinkat(&directory, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags =
        OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(openat(&directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?.into())
}

/// Name of the tester's directory in a volume.
pub fn name(bench: &Bench) -> String {
    format!(".flexvol-sanity-{}", bench.run.tag)
}

/// Writes and syncs a file in the tester's directory. Replaces an earlier file of that name.
pub fn try_write(
    bench: &Bench,
    mount_point: &MountPoint,
    file: &str,
    bytes: &[u8],
) -> io::Result<()> {
    let mut file = open(bench, mount_point, file)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Creates a file in the tester's directory.
pub fn open(bench: &Bench, mount_point: &MountPoint, file: &str) -> io::Result<File> {
    let wrote = Record::Wrote {
        name: mount_point.volume.name.clone(),
    };
    bench.record(wrote).map_err(io::Error::other)?;
    new(own(&mount_point.dir, &name(bench))?, file)
}

/// Like [`try_write`], but a failure counts as the driver's fault, because the volume was mounted writable.
pub fn write(bench: &Bench, mount_point: &MountPoint, file: &str, bytes: &[u8]) -> Verdict {
    writable(bench)?;
    try_write(bench, mount_point, file, bytes).map_err(|error| {
        let found = format!("writing a file fails: {error}");
        fault("what is mounted writable can be written", found)
    })
}

/// Stops the check if the configuration says that volumes are read-only.
pub fn writable(bench: &Bench) -> Verdict {
    if bench.run.config.volume.read_only {
        let why = "the configuration says read_only: nothing can be written";
        return Err(not_applicable(why));
    }
    Ok(())
}

/// Returns the content of a file in the tester's directory, or none if it cannot be read.
pub fn read(bench: &Bench, mount_point: &MountPoint, file: &str) -> Option<Vec<u8>> {
    let own = openat(
        top(&mount_point.dir).ok()?,
        name(bench).as_str(),
        DIRECTORY,
        Mode::empty(),
    )
    .ok()?;
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut file = File::from(openat(own, file, flags, Mode::empty()).ok()?);
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Stops the check with a fault unless the file has these bytes.
pub fn expect(bench: &Bench, mount_point: &MountPoint, file: &str, bytes: &[u8]) -> Verdict {
    let Some(found) = read(bench, mount_point, file) else {
        return Err(fault("the file that was written", "it is gone"));
    };
    if found == bytes {
        return Ok(());
    }
    let found = format!("{} bytes of something else", found.len());
    Err(fault("what was written", found))
}

/// Removes the tester's directory from a volume.
pub fn remove(bench: &Bench, mount_point: &MountPoint) -> Result<(), Stop> {
    let directory = mount_point.dir.join(name(bench));
    match directory.symlink_metadata() {
        Ok(_) => Ok(cleanup::remove(&directory)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(anyhow::Error::from(error)
            .context("look for the tester's directory")
            .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn neither_links_nor_files_of_others_are_written_through() {
        let directory = tempfile::tempdir().unwrap();
        let (volume, precious) = (
            directory.path().join("volume"),
            directory.path().join("precious"),
        );
        fs::create_dir(&volume).unwrap();
        fs::write(&precious, "mine").unwrap();
        let own = own(&volume, "own").unwrap();
        symlink(&precious, volume.join("own/file")).unwrap();
        new(&own, "file").unwrap().write_all(b"new").unwrap();
        assert_eq!(fs::read(&precious).unwrap(), b"mine");
        assert_eq!(fs::read(volume.join("own/file")).unwrap(), b"new");
        fs::remove_dir_all(volume.join("own")).unwrap();
        symlink(directory.path(), volume.join("own")).unwrap();
        assert!(
            super::own(&volume, "own").is_err(),
            "a link is no directory"
        );
    }
}
