//! Removal of a driver from the plugin directory.

use super::{
    DriverName,
    deployment::STAGE,
    files::{clear, lock, names_in, remove_file, sync},
    owned::expect_owned,
    users::refuse_while_mounted,
};
use anyhow::{Context, Result, ensure};
use std::{ffi::OsString, fs, io, path::Path};

/// The result of [`remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// The driver was removed.
    Driver,
    /// There was no driver.
    Nothing,
}

/// Removes a driver from a plugin directory.
///
/// The executable is removed first, and not renamed, so that kubelet forgets the driver. A directory without its
/// executable would make kubelet retry `init` for ever.
///
/// # Errors
/// When volumes of the driver are mounted, or the directory has files that are not of this driver.
pub fn remove(plugin_dir: &Path, name: &DriverName) -> Result<Removed> {
    if !plugin_dir.is_dir() {
        return Ok(Removed::Nothing);
    }
    let home = plugin_dir.join(name.directory());
    for path in [plugin_dir, &home] {
        expect_owned(path)?;
    }
    let _lock = lock(plugin_dir)?;
    clear(&plugin_dir.join(format!(".{}", name.directory())))?;
    let found = match names_in(&home) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Removed::Nothing),
        Err(error) => return Err(error).with_context(|| format!("list {}", home.display())),
    };
    let driver = name.driver();
    // The line goes last, because it identifies a driver of flexvol.
    let ours = [
        driver.to_owned(),
        format!(".{driver}.toml"),
        format!(".{driver}.init"),
    ]
    .map(OsString::from);
    let [executable, _, line] = &ours;
    ensure!(
        !found.contains(executable) || found.contains(line),
        "{} was not installed by flexvol; remove it by hand",
        home.join(executable).display()
    );
    let others: Vec<_> = found
        .iter()
        .filter(|name| !ours.contains(name) && *name != STAGE)
        .map(|name| name.to_string_lossy())
        .collect();
    ensure!(
        others.is_empty(),
        "{} also holds {}; remove that first",
        home.display(),
        others.join(", ")
    );
    refuse_while_mounted(name, "uninstall the driver")?;
    for name in &ours {
        remove_file(&home.join(name))?;
    }
    clear(&home.join(STAGE))?;
    fs::remove_dir(&home).with_context(|| format!("remove {}", home.display()))?;
    sync(plugin_dir)?;
    Ok(Removed::Driver)
}
