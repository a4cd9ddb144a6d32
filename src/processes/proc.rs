//! Files of a process in /proc.

use flexvol_storage::{host::fs::rooted::Root, sdk::Bytes};
use std::{
    fs::File,
    io::{self, Read},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

/// Longest file that is read. Command lines can have a few MiB, but kubelet's has some KiB.
const LONGEST: u64 = 1 << 20;

/// A process. Its open directory keeps referring to it, even after it ended and its id was reused.
#[derive(Debug)]
pub struct Proc(File);

impl Proc {
    pub fn open(pid: u32) -> Option<Proc> {
        File::open(format!("/proc/{pid}")).ok().map(Proc)
    }

    pub fn own() -> Option<Proc> {
        File::open("/proc/self").ok().map(Proc)
    }

    /// Returns the path of one of its files, valid in this process.
    pub fn path(&self, name: &str) -> PathBuf {
        Path::new("/proc/self/fd")
            .join(self.0.as_raw_fd().to_string())
            .join(name)
    }

    /// Reads one of its files, converted lossily to text.
    pub fn read(&self, name: &str) -> Option<String> {
        Some(String::from_utf8_lossy(&self.bytes(name)?).into_owned())
    }

    /// Reads one of its files; `None` if it is too long.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = File::open(self.path(name)).ok()?;
        file.take(LONGEST + 1).read_to_end(&mut bytes).ok()?;
        u64::try_from(bytes.len())
            .is_ok_and(|length| length <= LONGEST)
            .then_some(bytes)
    }

    /// Opens its root directory.
    pub fn root(&self) -> io::Result<Root> {
        Root::at(&self.path("root"))
    }

    /// Reads a file at a path in its root directory, of at most 1 MiB.
    pub fn read_own(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.root()?.read(path, Bytes(LONGEST))
    }
}
