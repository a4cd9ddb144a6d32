//! A process's files in /proc.

use flexvol_storage::{host::fs::rooted::Root, sdk::Bytes};
use std::{
    fs::File,
    io::{self, Read},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

/// More than any of them has that is read whole: a command line has at most a few MiB, kubelet's some KiB.
const LONGEST: u64 = 1 << 20;

/// A process. What is read of it is its own, also when it has ended and another one has its number.
#[derive(Debug)]
pub struct Proc(File);

impl Proc {
    pub fn open(pid: u32) -> Option<Proc> {
        File::open(format!("/proc/{pid}")).ok().map(Proc)
    }

    pub fn own() -> Option<Proc> {
        File::open("/proc/self").ok().map(Proc)
    }

    /// One of its files, for this process.
    pub fn path(&self, name: &str) -> PathBuf {
        Path::new("/proc/self/fd")
            .join(self.0.as_raw_fd().to_string())
            .join(name)
    }

    /// What is in one of its files, as far as it is text.
    pub fn read(&self, name: &str) -> Option<String> {
        Some(String::from_utf8_lossy(&self.bytes(name)?).into_owned())
    }

    /// What is in one of its files, unless that is more than it can be.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = File::open(self.path(name)).ok()?;
        file.take(LONGEST + 1).read_to_end(&mut bytes).ok()?;
        u64::try_from(bytes.len())
            .is_ok_and(|length| length <= LONGEST)
            .then_some(bytes)
    }

    /// Its root directory.
    pub fn root(&self) -> io::Result<Root> {
        Root::at(&self.path("root"))
    }

    /// A file of its own, of at most 1 MiB.
    pub fn read_own(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.root()?.read(path, Bytes(LONGEST))
    }
}
