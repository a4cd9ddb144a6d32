//! What a scenario may not leave on the node or take from it.

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

/// Loops on the data disk, mounts and directories of kubelet's that have to do with volumes of
/// drivers, the pool's files, and the disk's free blocks and inodes: a line each.
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
        // A driver's first attached volume leaves these, and kubelet never removes them.
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

    /// The same without what the pool holds: while nothing uses a volume there is nothing else.
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

    /// The lines only one of them has, or has more often: `-` here, `+` there.
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
    // What kubelet removes while it is listed is gone.
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let shown = format!("{shown}/{}", entry.file_name().to_string_lossy());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            list(&entry.path(), &shown, lines);
        }
        lines.push(format!("file {shown}"));
    }
}
