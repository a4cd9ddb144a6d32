//! Configuration of a machine: its disks and its console.

use super::emulator::{Console, DISK_BYTES, DISKS, Disk, PAYLOAD_BYTES};
use anyhow::{Context, Result, ensure};
use std::{
    fs::{File, OpenOptions},
    path::{Path, PathBuf},
};

/// File in a machine's directory: the fifth disk, for copying files into the machine.
pub const PAYLOAD: &str = "payload";

/// Configuration of a machine. Its disks are temporary, except those with a named file.
#[derive(Clone, Debug)]
pub struct Setup {
    pub(super) directory: PathBuf,
    files: [Option<PathBuf>; DISKS],
    logs: [Option<PathBuf>; DISKS],
    pub(super) console: Console,
}

impl Setup {
    /// Creates a configuration. Temporary disks and sockets are created in `directory`, whose path must be short: names
    /// of sockets are limited to 107 bytes.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Setup {
            directory: directory.to_owned(),
            files: Default::default(),
            logs: Default::default(),
            console: Console::File,
        }
    }

    /// Uses this file as disk `at`. The file is created if missing, and kept.
    ///
    /// # Panics
    /// When there is no such disk.
    #[must_use]
    pub fn disk(mut self, at: usize, file: &Path) -> Self {
        self.files[at] = Some(file.to_owned());
        self
    }

    /// Records every write, flush and discard of disk `at` in `log`, which is truncated first. The format is that of
    /// the kernel's `dm-log-writes`, with sectors of 512 bytes.
    ///
    /// # Panics
    /// When there is no such disk.
    #[must_use]
    pub fn record(mut self, at: usize, log: &Path) -> Self {
        self.logs[at] = Some(log.to_owned());
        self
    }

    /// Uses this process' terminal as the machine's first console.
    #[must_use]
    pub fn on_the_terminal(mut self) -> Self {
        self.console = Console::Terminal;
        self
    }

    pub(super) fn disks(&self, own: &Path) -> Result<Vec<Disk>> {
        let mut disks = Vec::new();
        for (at, (file, log)) in self.files.iter().zip(&self.logs).enumerate() {
            let path = match file {
                Some(file) => file.clone(),
                None => own.join(format!("disk{at}")),
            };
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .with_context(|| format!("open disk {}", path.display()))?;
            let length = file.metadata().context("measure a disk")?.len();
            ensure!(
                length == 0 || length == DISK_BYTES,
                "disk {} has {length} bytes; every disk has {DISK_BYTES}",
                path.display()
            );
            file.set_len(DISK_BYTES).context("size a disk")?;
            if let Some(log) = log {
                File::create(log).with_context(|| format!("make {}", log.display()))?;
            }
            disks.push(Disk {
                file: path,
                log: log.clone(),
            });
        }
        let payload = own.join(PAYLOAD);
        let file = File::create_new(&payload).context("make the disk for files")?;
        file.set_len(PAYLOAD_BYTES)
            .context("size the disk for files")?;
        disks.push(Disk {
            file: payload,
            log: None,
        });
        Ok(disks)
    }
}
