//! Properties in which backends differ, as far as the tests for all of them need them.

use super::MIB;
use crate::{executable, lvm, sandbox_with};
use flexvol_testing::{Driver, PoolFilesystem, Sandbox};
use std::{fs, os::unix::fs::symlink};

/// The kind of volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Files on an ext4.
    Loop,
    /// Sparse files, which take only the blocks that were written.
    SparseLoop,
    /// Directories with quotas, on this file system.
    Dir(&'static str),
    /// Linear logical volumes, on two disks.
    Lvm,
    /// Logical volumes in a thin pool.
    ThinLvm,
    /// Files, by an example driver of a vendor.
    HelloBlock,
    /// Directories without quotas, by an example driver of a vendor.
    HelloDirectory,
}

impl Backend {
    /// Installs a driver with this name, over an existing one if there is one. `more` are additional keys of its
    /// pool.
    pub fn install(self, sandbox: &Sandbox, name: &str, attach: bool, more: &str) -> Driver {
        let path = format!("path = {:?}", sandbox.pool());
        let group = format!("group = \"{}\"", lvm::GROUP);
        let (backend, pool) = match self {
            Backend::Loop => ("loop", path),
            Backend::SparseLoop => ("loop", path + "\nthin = true"),
            Backend::Dir(_) => ("dir", path + "\nreserve = \"5%\""),
            Backend::Lvm => ("lvm", group),
            Backend::ThinLvm => ("lvm", group + "\nthin_pool = \"tp0\""),
            Backend::HelloBlock | Backend::HelloDirectory => return vendor(sandbox, name),
        };
        let text =
            format!("backend = {backend:?}\nattach = {attach}\n[pools.default]\n{pool}\n{more}\n");
        sandbox.install_with(&format!("example.com/{name}"), &text)
    }

    /// The name of its driver in tests.
    pub fn driver(self) -> &'static str {
        match self {
            Backend::Loop | Backend::SparseLoop => "loop",
            Backend::Dir(_) => "dir",
            Backend::Lvm | Backend::ThinLvm => "lvm",
            Backend::HelloBlock => "hello-block",
            Backend::HelloDirectory => "hello-directory",
        }
    }

    /// A sandbox with a pool for it, on a file system of so many MiB.
    pub fn sandbox(self, mebibytes: u64) -> Sandbox {
        let (kind, quotas) = match self {
            Backend::Dir(kind) => (kind, true),
            _ => ("ext4", false),
        };
        sandbox_with(PoolFilesystem {
            kind,
            mebibytes,
            quotas,
        })
    }

    pub fn is_directory(self) -> bool {
        matches!(self, Backend::Dir(_) | Backend::HelloDirectory)
    }

    pub fn is_lvm(self) -> bool {
        matches!(self, Backend::Lvm | Backend::ThinLvm)
    }

    /// The default file system of its volumes.
    pub fn filesystem(self) -> &'static str {
        match self {
            _ if self.is_directory() => "",
            _ if self.is_lvm() => "ext4",
            _ => "xfs",
        }
    }

    /// All file systems that its volumes can have.
    pub fn filesystems(self) -> &'static [&'static str] {
        match self {
            _ if self.is_directory() => &[""],
            _ if self.is_lvm() => &["xfs", "ext4", "btrfs"],
            Backend::HelloBlock => &["xfs"],
            _ => &["xfs", "btrfs", "ext4", "ext3"],
        }
    }

    /// Size of volumes, sufficient for every file system, and their size after a growth.
    pub fn sizes(self) -> (u64, u64) {
        match self {
            Backend::Dir(_) => (16 * MIB, 24 * MIB),
            Backend::HelloDirectory => (64 * MIB, 96 * MIB),
            _ if self.is_lvm() => (320 * MIB, 480 * MIB),
            _ => (300 * MIB, 600 * MIB),
        }
    }
}

/// Installs an example driver from `drivers/` as a vendor does, with the sandbox's pool.
pub fn vendor(sandbox: &Sandbox, name: &str) -> Driver {
    let built = executable().with_file_name(name);
    assert!(built.exists(), "build it first: cargo build -p {name}");
    let directory = sandbox.plugins().join(format!("example.com~{name}"));
    fs::create_dir(&directory).unwrap();
    fs::copy(built, directory.join(name)).unwrap();
    symlink(sandbox.pool(), directory.join(".pool")).unwrap();
    Driver::new(&format!("example.com/{name}"), directory.join(name))
}
