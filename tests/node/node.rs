//! A node with a driver, and operations on its volumes for every backend. A new backend is a case of [`Backend`], and
//! then runs all stories.

mod backend;

use crate::{by_hand::json_of, lvm};
use flexvol_testing::{
    Baseline, Call, Driver, Need, PersistentVolume, Pod, PoolFilesystem, Sandbox, disks, request,
};
use rustix::fs::{major, minor};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

pub use backend::{Backend, vendor};

pub const MIB: u64 = 1 << 20;

/// UID of the pod that most tests use.
pub const UID: &str = "0b1e55ed-0000-4000-8000-000000000001";

pub const LOOP: &[Need] = &[
    Need::Root,
    Need::Tool("mkfs.xfs", "xfsprogs"),
    Need::Tool("mkfs.ext4", "e2fsprogs"),
    Need::Tool("mkfs.btrfs", "btrfs-progs"),
    Need::Tool("setpriv", "util-linux"),
];
pub const ROOT: &[Need] = &[Need::Root];

/// One node with a driver.
pub struct Node {
    pub backend: Backend,
    pub sandbox: Sandbox,
    pub driver: Driver,
}

impl Node {
    pub fn new(backend: Backend) -> Self {
        Node::with(backend, "")
    }

    /// A node whose pool has these additional keys.
    pub fn with(backend: Backend, more: &str) -> Self {
        Node::made(backend, false, more)
    }

    /// A node with a driver that attaches.
    pub fn attached(backend: Backend) -> Self {
        Node::made(backend, true, "")
    }

    fn made(backend: Backend, attach: bool, more: &str) -> Self {
        if backend.is_lvm() {
            lvm::group(lvm::GROUP, &disks()[..2]);
        }
        if backend == Backend::ThinLvm {
            lvm::thin_pool("1200M");
        }
        let mebibytes = match backend {
            Backend::Dir(_) => 512,
            _ => PoolFilesystem::default().mebibytes,
        };
        Node::on(backend, backend.sandbox(mebibytes), attach, more)
    }

    /// A node in this sandbox, and on an existing volume group.
    pub fn on(backend: Backend, sandbox: Sandbox, attach: bool, more: &str) -> Self {
        let init = ["pool", "init", "--group", lvm::GROUP, "--thin-pool", "tp0"];
        match backend {
            Backend::Lvm => drop(lvm::flexvol(&init[..4])),
            Backend::ThinLvm => drop(lvm::flexvol(&init)),
            _ => {}
        }
        let driver = backend.install(&sandbox, backend.driver(), attach, more);
        Node {
            backend,
            sandbox,
            driver,
        }
    }

    /// Installs the driver again, with other keys of its pool.
    pub fn install(&self, more: &str) -> Driver {
        self.install_as(self.backend.driver(), more)
    }

    /// Installs a second driver on the same pool.
    pub fn install_as(&self, name: &str, more: &str) -> Driver {
        self.backend.install(&self.sandbox, name, false, more)
    }

    /// The path of the driver's configuration, for verbs.
    pub fn configuration(&self) -> String {
        let executable = self.driver.executable();
        let name = executable.file_name().unwrap().display();
        let path = executable.with_file_name(format!(".{name}.toml"));
        path.to_str().unwrap().to_owned()
    }

    pub fn size(&self) -> u64 {
        self.backend.sizes().0
    }

    pub fn grown(&self) -> u64 {
        self.backend.sizes().1
    }

    pub fn provision(&self, name: &str) -> Call {
        self.driver
            .call(&["provision", &request(name, self.size())])
    }

    pub fn volume(&self, name: &str) -> PersistentVolume {
        self.volume_of(name, self.backend.filesystem())
    }

    pub fn volume_of(&self, name: &str, filesystem: &'static str) -> PersistentVolume {
        PersistentVolume::provision(&self.driver, name, filesystem, self.size())
    }

    pub fn pod<'a>(&'a self, volume: &'a PersistentVolume) -> Pod<'a> {
        self.pod_of(volume, UID)
    }

    pub fn pod_of<'a>(&'a self, volume: &'a PersistentVolume, uid: &str) -> Pod<'a> {
        Pod::new(&self.sandbox, &self.driver, volume, uid)
    }

    /// Runs a pod that writes a file `file`, and returns the ended pod and the content.
    pub fn written<'a>(&'a self, volume: &'a PersistentVolume) -> (Pod<'a>, Vec<u8>) {
        let pod = self.pod(volume);
        pod.mount("rw").success();
        let content = fill(pod.dir(), "file");
        pod.unmount().success();
        (pod, content)
    }

    pub fn grow(&self, pod: &Pod<'_>, to: u64) -> Call {
        self.driver.call(&pod.expand_arguments(to, self.size()))
    }

    pub fn expand(&self, volume: &PersistentVolume, to: u64) -> Call {
        self.grow(&self.pod(volume), to)
    }

    /// Grows only the storage, as while the volume is not mounted.
    pub fn expand_volume(&self, volume: &PersistentVolume, to: u64) -> Call {
        let arguments = self.expand_volume_arguments(volume, self.size(), to);
        self.driver.call(&arguments)
    }

    pub fn expand_volume_arguments(
        &self,
        volume: &PersistentVolume,
        had: u64,
        to: u64,
    ) -> Vec<String> {
        let dir = self.pod(volume).dir().to_str().unwrap().to_owned();
        let [new, old] = [to, had].map(|size| size.to_string());
        vec!["expandvolume".to_owned(), volume.json("rw"), dir, new, old]
    }

    pub fn delete(&self, volume: &PersistentVolume) -> Call {
        self.driver.call(&["delete", &volume.json("rw")])
    }

    /// The path from which programs read the volume's blocks: an image, or an active device.
    pub fn blocks(&self, volume: &PersistentVolume) -> PathBuf {
        match self.backend.is_lvm() {
            true => PathBuf::from(format!("/dev/{}", lvm::path(volume))),
            false => volume.image(&self.sandbox),
        }
    }

    /// The sizes of all volumes, by id.
    pub fn sizes(&self) -> BTreeMap<String, u64> {
        match self.backend {
            Backend::Loop | Backend::SparseLoop | Backend::HelloBlock => {
                let images = fs::read_dir(self.sandbox.pool().join("volumes")).unwrap();
                let size = |image: fs::DirEntry| {
                    let name = image.file_name().into_string().unwrap();
                    (name, image.metadata().unwrap().len())
                };
                images.map(|image| size(image.unwrap())).collect()
            }
            // Only the driver can read every kind of limit.
            Backend::Dir(_) | Backend::HelloDirectory => {
                let listed = json_of(&self.driver, &["list", "-o", "json"]);
                let volumes = listed["volumes"].as_array().unwrap();
                let sizes: BTreeMap<String, u64> = volumes
                    .iter()
                    .map(|volume| {
                        let id = volume["id"].as_str().unwrap().to_owned();
                        // The driver reports no size if it does not understand the mark.
                        (id, volume["storage"].as_u64().unwrap_or_default())
                    })
                    .collect();
                let directories = fs::read_dir(self.sandbox.pool().join("volumes")).unwrap();
                let directories: BTreeSet<_> = directories
                    .map(|found| found.unwrap().file_name().into_string().unwrap())
                    .collect();
                assert!(sizes.keys().eq(directories.iter()), "{listed}");
                sizes
            }
            Backend::Lvm | Backend::ThinLvm => lvm::sizes(),
        }
    }

    /// Everything on the node that a callout could leave.
    pub fn inventory(&self) -> Inventory {
        Inventory {
            baseline: Baseline::of(&self.sandbox),
            lvm: self.of_lvm(),
        }
    }

    /// Everything in LVM.
    pub fn of_lvm(&self) -> Vec<String> {
        match self.backend.is_lvm() {
            true => lvm::inventory(),
            false => Vec::new(),
        }
    }

    /// Checks that nothing is left or missing.
    #[track_caller]
    pub fn expect(&self, before: &Inventory, when: &str) {
        before.baseline.expect(&self.sandbox, when);
        assert_eq!(self.of_lvm(), before.lvm, "{when}");
    }
}

/// The state of a node at one time.
pub struct Inventory {
    baseline: Baseline,
    lvm: Vec<String>,
}

impl Inventory {
    /// See [`Baseline::without_space`].
    pub fn without_space(self) -> Self {
        let baseline = self.baseline.without_space();
        Inventory { baseline, ..self }
    }

    /// Without names promised in `/run`, which stay for a repeated call and are removed by `gc`.
    pub fn without_promises(mut self) -> Self {
        self.lvm.retain(|line| !line.starts_with("promised"));
        self
    }
}

/// Writes and syncs a small file, and returns its content for later comparison.
pub fn fill(dir: &Path, name: &str) -> Vec<u8> {
    let content: Vec<u8> = (0..MIB / 4).map(|at| (at % 251) as u8).collect();
    let mut file = File::create(dir.join(name)).unwrap();
    file.write_all(&content).unwrap();
    file.sync_all().unwrap();
    content
}

fn block() -> Vec<u8> {
    (0..1 << 20).map(|at: u32| (at % 251) as u8).collect()
}

/// Writes a large file.
pub fn write(dir: &Path, name: &str, mebibytes: usize) -> io::Result<()> {
    let mut file = File::create(dir.join(name))?;
    let block = block();
    for _ in 0..mebibytes {
        file.write_all(&block)?;
    }
    file.sync_all()
}

/// Checks a file that [`write()`] made.
#[track_caller]
pub fn expect_written(dir: &Path, name: &str, mebibytes: usize) {
    let found = fs::read(dir.join(name)).unwrap();
    assert_eq!(found.len(), mebibytes << 20, "{name}");
    let block = block();
    assert!(found.chunks(1 << 20).all(|part| part == block), "{name}");
}

/// Triggers an error in a mounted ext4, as after a disk error.
pub fn ext4_meets_error(mounted: &Path) {
    let device = fs::metadata(mounted).unwrap().dev();
    let device = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let device = fs::canonicalize(device).unwrap();
    let filesystem = Path::new("/sys/fs/ext4").join(device.file_name().unwrap());
    fs::write(filesystem.join("trigger_fs_error"), "1").unwrap();
}

/// The size of a file system, as `df` shows it.
pub fn size_of_filesystem(dir: &Path) -> u64 {
    let found = nix::sys::statvfs::statvfs(dir).unwrap();
    found.blocks() * found.fragment_size()
}

/// The capacity that the driver reports.
#[track_caller]
pub fn capacity(driver: &Driver) -> u64 {
    let call = driver.call(&["capacity", "{}"]).success();
    call.object().unwrap()["capacity"].as_u64().unwrap()
}

/// The size in the reply to a growth.
#[track_caller]
pub fn measured(call: &Call) -> u64 {
    call.object().unwrap()["volumenewsize"].as_u64().unwrap()
}
