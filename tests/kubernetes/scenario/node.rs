//! Observations and changes on the node itself, not through Kubernetes.

use super::{MEBI, Scenario};
use crate::{lab::POOL, objects::name_of};
use flexvol_testing::{Mounted, mounts_in, volume_id};
use nix::{
    fcntl::{FallocateFlags, fallocate},
    sys::statvfs::statvfs,
};
use serde_json::Value;
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

impl Scenario {
    /// The size in bytes of a volume's image in the pool.
    #[track_caller]
    pub fn image_bytes(&self, name: &str) -> u64 {
        fs::metadata(self.image(name)).unwrap().len()
    }

    /// The path of a volume's image in the pool.
    #[track_caller]
    pub fn image(&self, name: &str) -> PathBuf {
        let id = volume_id(self.options(name)["handle"].as_str().unwrap());
        self.lab
            .cluster()
            .node()
            .path(POOL)
            .join("volumes")
            .join(id)
    }

    /// Fills the data disk with a foreign file, except for so many MiB, and returns the file, which is removed with
    /// the scenario.
    #[track_caller]
    pub fn fill_disk(&self, leave_mebibytes: u64) -> PathBuf {
        let filler = self.filler();
        let disk = filler.parent().unwrap();
        let space = statvfs(disk).unwrap();
        let free = space.blocks_available() * space.fragment_size();
        let take = i64::try_from(free - leave_mebibytes * MEBI).unwrap();
        let file = File::create(&filler).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, take).unwrap();
        filler
    }

    pub(super) fn filler(&self) -> PathBuf {
        self.lab
            .cluster()
            .node()
            .path(flexvol_lab::kubernetes::DISK)
            .join("somebody-else")
    }

    /// kubelet's directory of a pod, in the node.
    #[track_caller]
    pub fn directory_of(&self, pod: &Value) -> PathBuf {
        let (namespace, name) = name_of(pod);
        let uid = self.get(namespace, "pod", name)["metadata"]["uid"].clone();
        Path::new("/var/lib/kubelet/pods").join(uid.as_str().unwrap())
    }

    /// The mounts below one of kubelet's directories that a driver made.
    #[track_caller]
    pub fn mounts_below(&self, directory: &Path) -> Vec<Mounted> {
        let mut mounts = mounts_in(&self.lab.cluster().node().mountinfo().unwrap());
        mounts.retain(|mount| mount.point.starts_with(directory) && mount.filesystem != "tmpfs");
        mounts
    }

    /// Whether this path exists in the node.
    pub fn is_in_node(&self, path: &Path) -> bool {
        let path = path.to_str().unwrap();
        self.lab.cluster().node().path(path).exists()
    }
}
