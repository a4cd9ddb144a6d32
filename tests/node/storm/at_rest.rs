//! Changes that a storm makes to volumes without the driver, and checks after a storm.

use crate::{
    lvm,
    node::{Backend, Node},
};
use flexvol_host::{VolumeId, pool::Pool};
use flexvol_testing::PersistentVolume;
use std::{collections::BTreeSet, fs};

impl Node {
    /// Changes a volume's mark, and returns the old one.
    pub fn mark(&self, volume: &PersistentVolume, change: impl FnOnce(String) -> String) -> String {
        if self.backend.is_lvm() {
            let old = lvm::told(volume, "lv_tags");
            let (name, new) = (lvm::path(volume), change(old.clone()));
            lvm::lvm(&["lvchange", "-qq", "--deltag", &old, "--addtag", &new, &name]);
            return old;
        }
        let pool = Pool::open(&self.sandbox.pool()).unwrap();
        let id = VolumeId::parse(&volume.id()).unwrap();
        if self.backend.is_directory() {
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

    /// Checks the state at rest: so many volumes are mounted, each with one device of its own, and no other device
    /// stays.
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
            Backend::Loop | Backend::SparseLoop | Backend::HelloBlock => {
                assert_eq!(loops.len(), mounted, "seed {seed}: loops and mounts")
            }
            Backend::Dir(_) | Backend::HelloDirectory => {
                assert!(loops.is_empty(), "seed {seed}: {loops:?}")
            }
            Backend::Lvm | Backend::ThinLvm => {
                let found = lvm::mappings();
                assert!(found.len() >= mounted, "seed {seed}: {found:?}");
                for device in found {
                    let suspended = fs::read_to_string(device.join("dm/suspended")).unwrap();
                    assert_eq!(suspended.trim(), "0", "seed {seed}: {device:?}");
                }
            }
        }
    }
}
