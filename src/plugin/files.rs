//! File operations of an installation: idempotent, and durable before they are reported.

use anyhow::{Context, Result, bail};
use std::{
    ffi::OsString,
    fs::{self, DirBuilder, File, Permissions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Mode of the executable and of directories on its path.
pub(super) const EXECUTABLE: u32 = 0o755;

/// Timeout for the lock: an installation takes milliseconds and one run of `init`.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Locks a plugin directory against concurrent installations.
pub(super) fn lock(plugin_dir: &Path) -> Result<File> {
    let shown = plugin_dir.display();
    let directory = File::open(plugin_dir).with_context(|| format!("open {shown}"))?;
    let started = Instant::now();
    loop {
        match directory.try_lock() {
            Ok(()) => return Ok(directory),
            Err(TryLockError::WouldBlock) if started.elapsed() < TIMEOUT => {
                thread::sleep(Duration::from_millis(50));
            }
            Err(TryLockError::WouldBlock) => {
                bail!("another installation in {shown} does not end")
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("lock {shown}"));
            }
        }
    }
}

/// Removes a directory of staged files, if it is there.
pub(super) fn clear(stage: &Path) -> Result<()> {
    empty(stage)?;
    match fs::remove_dir(stage) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", stage.display()))
        }
        _ => Ok(()),
    }
}

/// Removes the files of a directory of staged files, if it is there.
pub(super) fn empty(stage: &Path) -> Result<()> {
    match names_in(stage) {
        Ok(names) => names
            .iter()
            .try_for_each(|name| remove_file(&stage.join(name))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("list {}", stage.display())),
    }
}

pub(super) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

pub(super) fn names_in(directory: &Path) -> io::Result<Vec<OsString>> {
    fs::read_dir(directory)?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect()
}

/// Makes a directory as kubelet would (`Init` in `pkg/volume/flexvolume/probe.go`).
pub(super) fn make_directory(path: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(EXECUTABLE)
        .create(path)
        .with_context(|| format!("make {}", path.display()))
}

pub(super) fn set_mode(path: &Path, mode: u32) -> Result<()> {
    let set = || {
        if fs::metadata(path)?.mode() & 0o7777 == mode {
            return Ok(());
        }
        fs::set_permissions(path, Permissions::from_mode(mode))
    };
    let set: io::Result<()> = set();
    set.with_context(|| format!("set the mode of {}", path.display()))
}

pub(super) fn sync(directory: &Path) -> Result<()> {
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .with_context(|| format!("sync {}", directory.display()))
}
