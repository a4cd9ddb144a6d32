//! What a storm passes over: a node, and where its volumes are.

use crate::{by_hand::said_json, dir, lvm, sandbox, sandbox_with};
use flexvol_host::{VolumeId, pool::Pool};
use flexvol_testing::{Baseline, Driver, PersistentVolume, PoolFilesystem, Sandbox, disks};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

/// What the volumes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Files on an ext4.
    Loop,
    /// Directories on this file system.
    Dir(&'static str),
    /// Logical volumes.
    Lvm,
}

pub struct Place {
    pub backend: Backend,
    pub sandbox: Sandbox,
}

impl Place {
    /// A node with an empty pool for six gigabytes of volumes and little more: what a hundred storms write into it
    /// stays in memory.
    pub fn new(backend: Backend) -> Self {
        let on = |kind| PoolFilesystem {
            kind,
            mebibytes: 8 << 10,
            quotas: kind != "ext4",
        };
        let sandbox = match backend {
            Backend::Loop => sandbox_with(on("ext4")),
            Backend::Dir(kind) => sandbox_with(on(kind)),
            Backend::Lvm => {
                lvm::group(lvm::GROUP, &disks());
                lvm::flexvol(&["pool", "init", "--group", lvm::GROUP]);
                sandbox()
            }
        };
        Place { backend, sandbox }
    }

    /// Puts the driver into its place, also over one that is there.
    pub fn install(&self) -> Driver {
        match self.backend {
            Backend::Loop => self.sandbox.install("example.com/loop", false, ""),
            Backend::Dir(_) => dir::install(&self.sandbox, "dir", ""),
            Backend::Lvm => lvm::install(&self.sandbox, false, ""),
        }
    }

    /// What volumes are formatted with.
    pub fn filesystem(&self) -> &'static str {
        match self.backend {
            Backend::Dir(_) => "",
            _ => "xfs",
        }
    }

    /// Changes a volume's mark, and returns the old one.
    pub fn mark(&self, volume: &PersistentVolume, change: impl FnOnce(String) -> String) -> String {
        if self.backend == Backend::Lvm {
            let old = lvm::told(volume, "lv_tags");
            let (name, new) = (lvm::path(volume), change(old.clone()));
            lvm::lvm(&["lvchange", "-qq", "--deltag", &old, "--addtag", &new, &name]);
            return old;
        }
        let pool = Pool::open(&self.sandbox.pool()).unwrap();
        let id = VolumeId::parse(&volume.id()).unwrap();
        if let Backend::Dir(_) = self.backend {
            let directory = pool.directory(&id).unwrap();
            let old = directory.mark().unwrap().unwrap();
            directory.set_mark(&change(old.clone())).unwrap();
            return old;
        }
        let image = pool.existing_image(&id).unwrap();
        let old = image.mark().unwrap().unwrap();
        image.set_mark(&change(old.clone())).unwrap();
        old
    }

    /// The size in MiB of every volume there is, by its id.
    pub fn sizes(&self, driver: &Driver) -> BTreeMap<String, u64> {
        match self.backend {
            Backend::Loop => {
                let images = fs::read_dir(self.sandbox.pool().join("volumes")).unwrap();
                let size = |image: fs::DirEntry| {
                    let name = image.file_name().into_string().unwrap();
                    (name, image.metadata().unwrap().len() >> 20)
                };
                images.map(|image| size(image.unwrap())).collect()
            }
            // Only the driver reads every kind of limit.
            Backend::Dir(_) => {
                let listed = said_json(driver, &["list", "-o", "json"]);
                let volumes = listed["volumes"].as_array().unwrap();
                let sizes: BTreeMap<String, u64> = volumes
                    .iter()
                    .map(|volume| {
                        let id = volume["id"].as_str().unwrap().to_owned();
                        // It has none to tell where the mark is not understood.
                        (id, volume["storage"].as_u64().unwrap_or_default() >> 20)
                    })
                    .collect();
                let directories = fs::read_dir(self.sandbox.pool().join("volumes")).unwrap();
                let directories: BTreeSet<_> = directories
                    .map(|found| found.unwrap().file_name().into_string().unwrap())
                    .collect();
                assert!(sizes.keys().eq(directories.iter()), "{listed}");
                sizes
            }
            Backend::Lvm => lvm::sizes(),
        }
    }

    /// At rest: of the volumes that are mounted, which are so many, each has one device, and nobody
    /// else has one that stays.
    pub fn expect_legal(&self, mounted: usize, seed: u64) {
        let loops = self.sandbox.loops();
        let mut images = BTreeSet::new();
        for backing in &loops {
            assert!(backing.autoclear, "seed {seed}: a loop that stays");
            assert!(
                images.insert(backing.inode),
                "seed {seed}: two loops on one image"
            );
        }
        match self.backend {
            Backend::Loop => assert_eq!(loops.len(), mounted, "seed {seed}: loops and mounts"),
            Backend::Dir(_) => assert!(loops.is_empty(), "seed {seed}: {loops:?}"),
            Backend::Lvm => {
                let found = lvm::mappings();
                assert!(found.len() >= mounted, "seed {seed}: {found:?}");
                for device in found {
                    let suspended = fs::read_to_string(device.join("dm/suspended")).unwrap();
                    assert_eq!(suspended.trim(), "0", "seed {seed}: {device:?}");
                }
            }
        }
    }

    /// All that there is on the node. What was promised in /run stays for whoever goes on with it, and
    /// goes to `gc`.
    pub fn inventory(&self) -> (Baseline, Vec<String>) {
        let of_lvm = match self.backend {
            Backend::Lvm => lvm::inventory(),
            _ => Vec::new(),
        };
        let stays = of_lvm
            .into_iter()
            .filter(|line| !line.starts_with("promised"));
        (Baseline::of(&self.sandbox), stays.collect())
    }
}
