//! The state of the node that a scenario must restore.

use crate::lab::{Lab, POOL};
use flexvol_lab::kubernetes::DISK;
use flexvol_testing::{loops_of, mounts_in};
use nix::sys::statvfs::statvfs;
use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::Path,
};

/// Where kubelet mounts attached volumes: `<vendor>/<driver>/mounts/<volume>`.
const GLOBAL: &str = "/var/lib/kubelet/plugins/kubernetes.io/flexvolume";

/// Loop devices on the data disk, kubelet's mounts and directories for volumes of drivers, the files of the
/// pool, and the disk's free blocks and inodes. One line each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baseline(Vec<String>);

impl Baseline {
    pub fn of(lab: &Lab) -> Self {
        let node = lab.cluster().node();
        let mut lines = Vec::new();
        let mounts = mounts_in(&node.mountinfo().unwrap());
        let ours = mounts.iter().filter(|mount| {
            mount.point.starts_with("/var/lib/kubelet") || mount.point.starts_with(DISK)
        });
        lines.extend(ours.map(|mount| format!("mount {}", mount.point.display())));
        let disk = node.path(DISK);
        let device = fs::metadata(&disk).unwrap().dev();
        lines.extend(
            loops_of(device)
                .iter()
                .map(|backing| format!("loop on {backing:?}")),
        );
        for dir in ["/var/lib/kubelet/pods", GLOBAL, POOL] {
            list(&node.path(dir), dir, &mut lines);
        }
        // A driver's first attached volume creates these directories, and kubelet never removes them.
        lines.retain(|line| {
            !line.starts_with(&format!("file {GLOBAL}")) || line.contains("/mounts/")
        });
        nix::unistd::syncfs(File::open(&disk).unwrap()).unwrap();
        let space = statvfs(&disk).unwrap();
        lines.push(format!(
            "{} blocks and {} inodes free",
            space.blocks_free(),
            space.files_free()
        ));
        lines.sort();
        Baseline(lines)
    }

    /// The same without the pool. This is what must be left when no pod uses a volume.
    pub fn without_pool(&self) -> Self {
        let in_pool = |line: &&String| {
            line.starts_with(&format!("file {POOL}")) || line.contains("blocks and")
        };
        Baseline(
            self.0
                .iter()
                .filter(|line| !in_pool(line))
                .cloned()
                .collect(),
        )
    }

    /// The lines that occur more often in one of the two: `-` in this one, `+` in the other.
    pub fn difference(&self, other: &Baseline) -> String {
        let more = |these: &Baseline, those: &Baseline, sign: &str| {
            let mut unmatched = those.0.clone();
            let mut text = String::new();
            for line in &these.0 {
                match unmatched.iter().position(|candidate| candidate == line) {
                    Some(at) => drop(unmatched.swap_remove(at)),
                    None => text += &format!("  {sign} {line}\n"),
                }
            }
            text
        };
        more(self, other, "-") + &more(other, self, "+")
    }
}

fn list(dir: &Path, shown: &str, lines: &mut Vec<String>) {
    // kubelet may remove files during the listing.
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let shown = format!("{shown}/{}", entry.file_name().to_string_lossy());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            list(&entry.path(), &shown, lines);
        }
        lines.push(format!("file {shown}"));
    }
}
