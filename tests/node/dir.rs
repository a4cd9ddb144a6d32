//! The backend `dir`, on each file system that can limit directories.

pub mod beside;
pub mod damage;
pub mod limits;
pub mod pool;
pub mod privileged;
pub mod removal;

use crate::{
    by_hand::json_of,
    node::{Backend, MIB, Node, size_of_filesystem},
};
use flexvol_testing::{Need, PersistentVolume, Pod};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

pub const XFS: &[Need] = &[
    Need::Root,
    Need::ProjectQuota("xfs"),
    Need::Tool("mkfs.xfs", "xfsprogs"),
    Need::Tool("setpriv", "util-linux"),
    Need::Tool("strace", "strace"),
];
pub const EXT4: &[Need] = &[
    Need::Root,
    Need::ProjectQuota("ext4"),
    Need::Tool("mkfs.ext4", "e2fsprogs"),
    Need::Tool("chattr", "e2fsprogs"),
    Need::Tool("setpriv", "util-linux"),
    Need::Tool("strace", "strace"),
];
pub const BTRFS: &[Need] = &[
    Need::Root,
    Need::Filesystem("btrfs"),
    Need::Tool("mkfs.btrfs", "btrfs-progs"),
    Need::Tool("setpriv", "util-linux"),
    Need::Tool("strace", "strace"),
];

/// Declares checks that run on every such file system.
macro_rules! on_each {
    ($($promise:literal => $check:path),* $(,)?) => {
        &[$(
            crate::story::story_on!(xfs $promise |backend, points| $check(&Node::new(backend), points)),
            crate::story::story_on!(ext4 $promise |backend, points| $check(&Node::new(backend), points)),
            crate::story::story_on!(btrfs $promise |backend, points| $check(&Node::new(backend), points)),
        )*]
    };
}
use on_each;

const SIZE: u64 = 16 * MIB;
const GROWN: u64 = 24 * MIB;

impl Node {
    /// Mounts the volume for a pod, and lets every user write to it.
    pub fn mounted<'a>(&'a self, volume: &'a PersistentVolume, uid: &str) -> Pod<'a> {
        let pod = self.pod_of(volume, uid);
        pod.mount("rw").success();
        open_to_all(pod.dir());
        pod
    }

    /// The volume's root in the pool.
    pub fn directory(&self, volume: &PersistentVolume) -> PathBuf {
        volume.root(&self.sandbox)
    }

    /// The directory around the volume's root, which has its mark and record.
    pub fn volume_directory(&self, volume: &PersistentVolume) -> PathBuf {
        volume.image(&self.sandbox)
    }

    pub fn volumes(&self) -> PathBuf {
        self.sandbox.pool().join("volumes")
    }

    /// The file system with the limits.
    fn kind(&self) -> &'static str {
        match self.backend {
            Backend::Dir(kind) => kind,
            other => panic!("{other:?} limits no directories"),
        }
    }

    /// Whether limits are project quotas.
    fn has_projects(&self) -> bool {
        self.kind() != "btrfs"
    }

    /// Checks the volume's limit with the driver and with `statfs`.
    #[track_caller]
    pub fn expect_limit(&self, volume: &PersistentVolume, size: u64) {
        let shown = json_of(&self.driver, &["show", volume.handle(), "-o", "json"]);
        assert_eq!(shown["storage"], size, "{shown}");
        if self.has_projects() {
            assert_eq!(size_of_filesystem(&self.directory(volume)), size);
        }
    }

    /// Takes the volume out of its project, as a pod with root can.
    pub fn take_from_project(&self, volume: &PersistentVolume) {
        if let Backend::Dir("xfs" | "ext4") = self.backend {
            run("chattr", &["-p", "0", "-P"], &self.directory(volume));
        }
    }

    /// Checks that each of these volumes has a project of its own, where limits are project quotas.
    pub fn expect_own_projects(&self, volumes: &[PersistentVolume]) {
        if let Backend::Dir("xfs" | "ext4") = self.backend {
            let project = |volume: &PersistentVolume| {
                let line = run("lsattr", &["-p", "-d"], &self.directory(volume));
                line.split_whitespace().next().unwrap().to_owned()
            };
            let projects: BTreeSet<_> = volumes.iter().map(project).collect();
            let all: BTreeSet<_> = volumes.iter().map(PersistentVolume::id).collect();
            assert_eq!(projects.len(), all.len(), "{projects:?}");
        }
    }

    /// The error message of a write to a full volume.
    pub fn full(&self) -> &'static str {
        match self.backend {
            Backend::Dir("ext4" | "btrfs") => "Disk quota exceeded",
            _ => "No space left on device",
        }
    }
}

fn open_to_all(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
}

/// A shell of an unprivileged user, as in most pods.
fn nobody(script: &str, dir: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(["bash", "-c", script])
        .current_dir(dir)
        .env("LC_ALL", "C")
        .stdin(Stdio::null());
    command
}

/// Writes a file as an unprivileged user until it has so many bytes or the write fails. Returns stderr.
pub fn write(dir: &Path, name: &str, bytes: u64) -> String {
    let script = format!("head -c {bytes} /dev/urandom >{name} && sync {name}");
    let Output { status, stderr, .. } = nobody(&script, dir).output().unwrap();
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.success(), said.is_empty(), "{said}");
    said
}

pub fn length(file: &Path) -> u64 {
    fs::metadata(file).unwrap().len()
}

#[track_caller]
pub fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    flexvol_testing::eventually(Duration::from_secs(5), what, is_so);
}

/// Runs a program that must succeed, and returns its output.
#[track_caller]
fn run(program: &str, arguments: &[&str], path: &Path) -> String {
    let output = Command::new(program)
        .args(arguments)
        .arg(path)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{program}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}
