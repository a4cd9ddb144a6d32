//! The node's data disk: a file on the host that contains a file system.

use super::{
    command::run,
    paths::{DISK, Home},
};
use anyhow::{Context, Result};
use std::{fs, fs::File, process::Command};

/// Size of the data disk: enough for the volumes of a hundred pods. Nothing is allocated.
const DISK_BYTES: u64 = 32 << 30;

/// Creates the disk and its mount point.
pub fn make(home: &Home) -> Result<()> {
    let image = home.own("disk.img");
    let file = File::create_new(&image).context("make the data disk")?;
    file.set_len(DISK_BYTES).context("size the data disk")?;
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.args([
        "-q",
        "-F",
        "-m0",
        "-E",
        "nodiscard,lazy_itable_init=1,lazy_journal_init=1",
    ]);
    run(mkfs.arg(&image))?;
    fs::create_dir_all(home.file(DISK)).context("make the place of the data disk")
}

/// Mounts the disk in this process' mount namespace, as the node's fstab would.
pub fn mount(home: &Home) -> Result<()> {
    run(Command::new("mount")
        .args(["-o", "loop"])
        .arg(home.own("disk.img"))
        .arg(DISK))?;
    Ok(())
}
