//! Sandboxes: a node of its own for one test, with a pool on its own small file system, a plugin directory and a
//! kubelet root. Everything is undone at the end, also after a panic.

use crate::{
    Backing, Driver,
    isolation::{self, MEMORY},
    kernel, mounts,
};
use nix::{
    fcntl::{FallocateFlags, fallocate},
    mount::{MntFlags, umount2},
    sys::statvfs::statvfs,
};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
};
use tempfile::TempDir;

/// The file system that holds a sandbox's pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolFilesystem {
    /// Type: `ext4`, `xfs` or `btrfs`.
    pub kind: &'static str,
    /// Size in MiB; nothing is allocated.
    pub mebibytes: u64,
    /// Whether quotas for directories are enabled.
    pub quotas: bool,
}

impl Default for PoolFilesystem {
    fn default() -> Self {
        PoolFilesystem {
            kind: "ext4",
            mebibytes: 4096,
            quotas: false,
        }
    }
}

/// The node of one test. Needs root.
#[derive(Debug)]
pub struct Sandbox {
    root: Option<TempDir>,
    executable: PathBuf,
    /// Device number of the pool's file system, encoded as in `stat` and in the loop driver.
    pool_device: u64,
    filesystem: PoolFilesystem,
    /// Ids of all volumes ever seen in the pool.
    volumes: Mutex<BTreeSet<String>>,
}

impl Sandbox {
    /// Creates a sandbox for drivers that are copies of `executable`, with an empty pool on ext4.
    ///
    /// # Panics
    /// When the machine cannot provide it.
    #[must_use]
    pub fn new(executable: &Path) -> Self {
        Self::with_pool_on(executable, PoolFilesystem::default())
    }

    /// Creates a sandbox with a pool on this file system.
    ///
    /// # Panics
    /// When the machine cannot provide it.
    #[must_use]
    pub fn with_pool_on(executable: &Path, filesystem: PoolFilesystem) -> Self {
        let mut sandbox = Sandbox {
            root: Some(
                tempfile::Builder::new()
                    .prefix("node-")
                    .permissions(fs::Permissions::from_mode(0o755))
                    .tempdir_in(isolation::arena())
                    .expect("make the sandbox's directory"),
            ),
            executable: executable.to_owned(),
            pool_device: 0,
            filesystem,
            volumes: Mutex::default(),
        };
        for dir in [sandbox.disk(), sandbox.plugins(), sandbox.kubelet_root()] {
            fs::create_dir(&dir).expect("make a directory of the sandbox");
        }
        let image = sandbox.path("pool.img");
        let file = File::create_new(&image).expect("make the pool's image");
        file.set_len(filesystem.mebibytes << 20)
            .expect("size the pool's image");
        let mkfs = format!("mkfs.{}", filesystem.kind);
        let (options, mount): (&str, &str) = match (filesystem.kind, filesystem.quotas) {
            ("xfs", false) => ("-q -K", "loop"),
            ("xfs", true) => ("-q -K", "loop,prjquota"),
            ("btrfs", _) => ("-q -K", "loop"),
            (_, false) => (
                "-q -F -m0 -E nodiscard,lazy_itable_init=1,lazy_journal_init=1",
                "loop",
            ),
            (_, true) => (
                "-q -F -m0 -O quota,project -E nodiscard,lazy_itable_init=1,lazy_journal_init=1,quotatype=prjquota",
                "loop,prjquota",
            ),
        };
        run(Command::new(mkfs).args(options.split(' ')).arg(&image));
        sandbox.mount_disk(&image, mount);
        if filesystem.quotas && filesystem.kind == "btrfs" {
            run(Command::new("btrfs")
                .args(["quota", "enable"])
                .arg(sandbox.disk()));
        }
        sandbox.make_pool(&sandbox.pool());
        sandbox
    }

    /// Makes a directory a pool, as an administrator does. Creates the directory if needed.
    ///
    /// # Panics
    /// When the driver's executable fails.
    pub fn make_pool(&self, path: &Path) {
        fs::create_dir_all(path).expect("make the pool's directory");
        let mut init = Command::new(&self.executable);
        run(init.args(["pool", "init"]).arg(path));
    }

    /// Whether freed space of the pool's disk is available again at once. Quota files never shrink, and Btrfs frees
    /// space later.
    pub(crate) fn returns_space(&self) -> bool {
        !self.filesystem.quotas && self.filesystem.kind != "btrfs"
    }

    fn mount_disk(&mut self, image: &Path, options: &str) {
        run(Command::new("mount")
            .args(["-t", self.filesystem.kind, "-o", options])
            .arg(image)
            .arg(self.disk()));
        let found = fs::metadata(self.disk()).expect("stat the pool's disk");
        self.pool_device = found.dev();
    }

    /// Replaces the pool's disk permanently by an image, or a disk, with a pool on the same type of file system.
    ///
    /// # Panics
    /// When the old disk is in use, or the new one cannot be mounted.
    pub fn change_disk(&mut self, image: &Path) {
        umount2(&self.disk(), MntFlags::UMOUNT_NOFOLLOW).expect("unmount the pool's disk");
        // A loop device on top of a failing disk would lose data that the disk never wrote, without an error.
        let is_disk = fs::metadata(image).is_ok_and(|found| found.file_type().is_block_device());
        self.mount_disk(image, if is_disk { "rw" } else { "loop" });
        self.forget_pools();
    }

    /// Makes the node forget the pools it remembers in this sandbox.
    ///
    /// # Panics
    /// When a record cannot be removed.
    pub fn forget_pools(&self) {
        let own = self.root().file_name().expect("a name").to_string_lossy();
        let records = MEMORY.iter().filter_map(|memory| fs::read_dir(memory).ok());
        for record in records.flatten().flatten() {
            if record.file_name().to_string_lossy().contains(&*own) {
                fs::remove_file(record.path()).expect("forget a pool");
            }
        }
    }

    /// Returns the sandbox's root directory.
    ///
    /// # Panics
    /// Never while the sandbox lives.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.root.as_ref().expect("a living sandbox").path()
    }

    /// Returns the mount point of the pool's file system, the node's data disk.
    #[must_use]
    pub fn disk(&self) -> PathBuf {
        self.path("disk")
    }

    /// Returns the pool, a directory on [`Sandbox::disk`].
    #[must_use]
    pub fn pool(&self) -> PathBuf {
        self.disk().join("pool")
    }

    /// Returns kubelet's plugin directory.
    #[must_use]
    pub fn plugins(&self) -> PathBuf {
        self.path("plugins")
    }

    /// Returns kubelet's root directory.
    #[must_use]
    pub fn kubelet_root(&self) -> PathBuf {
        self.path("kubelet")
    }

    /// Returns a path for the test's own use.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// Installs a driver named `vendor/driver` for this sandbox's pool. `pool_settings` is appended to the
    /// configuration of the pool.
    ///
    /// # Panics
    /// When the installation fails.
    #[must_use]
    pub fn install(&self, name: &str, attach: bool, pool_settings: &str) -> Driver {
        let pool = self.pool();
        let text = format!(
            "backend = \"loop\"\nattach = {attach}\n[pools.default]\npath = {pool:?}\n{pool_settings}\n"
        );
        self.install_with(name, &text)
    }

    /// Installs a driver with a complete configuration.
    ///
    /// # Panics
    /// When the installation fails.
    #[must_use]
    pub fn install_with(&self, name: &str, configuration: &str) -> Driver {
        let config = self.path("config.toml");
        fs::write(&config, configuration).expect("write the configuration");
        run(Command::new(&self.executable)
            .args(["install", "--name", name, "--plugin-dir"])
            .arg(self.plugins())
            .arg("--config")
            .arg(&config));
        let (_, driver) = name.split_once('/').expect("vendor/driver");
        let executable = self.plugins().join(name.replace('/', "~")).join(driver);
        assert!(
            executable.is_file(),
            "{} was not installed",
            executable.display()
        );
        Driver::new(name, executable)
    }

    /// Returns the backing files, on the pool's disk, of all loop devices.
    ///
    /// # Panics
    /// When the loop devices cannot be listed.
    #[must_use]
    pub fn loops(&self) -> Vec<Backing> {
        mounts::loops_of(self.pool_device)
    }

    /// Fills the pool's disk except for `leave` bytes with another user's file, and returns that file.
    ///
    /// # Panics
    /// When there is less free space, or the file cannot be created.
    #[must_use]
    pub fn fill_disk(&self, leave: u64) -> PathBuf {
        let space = statvfs(&self.disk()).expect("ask for the disk's space");
        let free = space.blocks_available() * space.fragment_size();
        let filler = self.disk().join("somebody-else");
        let file = File::create_new(&filler).expect("make somebody else's file");
        let take =
            i64::try_from(free.checked_sub(leave).expect("so much is free")).expect("63 bits");
        fallocate(&file, FallocateFlags::empty(), 0, take).expect("fill the disk");
        filler
    }

    /// Adds the volumes that are in the pool now; returns all that ever were.
    pub(crate) fn remember(&self, now: BTreeSet<String>) -> BTreeSet<String> {
        let mut volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        volumes.extend(now);
        volumes.clone()
    }

    fn undo(&mut self) {
        if self.root.is_some() && !isolation::keep() {
            self.forget_pools();
        }
        let Some(root) = self.root.take() else { return };
        if isolation::keep() {
            println!("kept: {}", root.keep().display());
            return;
        }
        // The pool's disk is the first mount. It is unmounted last, after the loop devices on it are released.
        let mut mounted = mounts::below(root.path());
        let disk = (!mounted.is_empty()).then(|| mounted.remove(0));
        for mount in mounted.iter().rev() {
            unmount(&mount.point);
        }
        for (device, backing) in mounts::loops_on(self.pool_device) {
            if !backing.autoclear {
                // A busy loop device keeps the disk busy, which is reported below.
                let _ = kernel::clear(&device);
            }
        }
        if let Some(disk) = disk {
            unmount(&disk.point);
        }
        if mounts::below(root.path()).is_empty() {
            root.close().expect("remove the sandbox's directory");
        } else {
            println!("kept, still mounted: {}", root.keep().display());
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.undo();
    }
}

fn unmount(point: &Path) {
    if let Err(error) = umount2(point, MntFlags::UMOUNT_NOFOLLOW) {
        println!("unmount {}: {error}; detaching it", point.display());
        let _ = umount2(point, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH);
    }
}

/// Runs a program. If it fails, the test fails with its output.
fn run(command: &mut Command) {
    let output = command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("start {command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
}
