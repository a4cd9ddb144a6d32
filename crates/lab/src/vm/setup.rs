//! What a machine is started on: its disks and its console.

use super::emulator::{Console, DISK_BYTES, DISKS, Disk, PAYLOAD_BYTES};
use anyhow::{Context, Result, ensure};
use std::{
    fs::{File, OpenOptions},
    path::{Path, PathBuf},
};

/// In a machine's directory: the disk, its fifth, that brings files into it.
pub const PAYLOAD: &str = "payload";

/// What a machine is started on. Its disks are thrown away, unless a file is named for one.
#[derive(Clone, Debug)]
pub struct Setup {
    pub(super) directory: PathBuf,
    files: [Option<PathBuf>; DISKS],
    logs: [Option<PathBuf>; DISKS],
    pub(super) console: Console,
}

impl Setup {
    /// Throw-away disks and sockets are made in `directory`, whose path must be short: sockets
    /// have names of at most 107 bytes.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Setup {
            directory: directory.to_owned(),
            files: Default::default(),
            logs: Default::default(),
            console: Console::File,
        }
    }

    /// Disk `at` is this file, which is made if it is missing and kept.
    ///
    /// # Panics
    /// When there is no such disk.
    #[must_use]
    pub fn disk(mut self, at: usize, file: &Path) -> Self {
        self.files[at] = Some(file.to_owned());
        self
    }

    /// Every write, flush and discard of disk `at` is recorded in `log`, which is emptied first, as
    /// the kernel's `dm-log-writes` does it, in sectors of 512 bytes.
    ///
    /// # Panics
    /// When there is no such disk.
    #[must_use]
    pub fn record(mut self, at: usize, log: &Path) -> Self {
        self.logs[at] = Some(log.to_owned());
        self
    }

    /// The machine's first console is this process's terminal.
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
