//! The backend `dir`, on each file system that limits directories.

pub mod beside;
pub mod damage;
pub mod disturbed;
pub mod limits;
pub mod pool;
pub mod privileged;
pub mod removal;

use crate::executable;
use flexvol_testing::{Call, Driver, Need, PersistentVolume, Pod, PoolFilesystem, Sandbox};
use std::{
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
const EXT4: &[Need] = &[
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

/// A promise that is kept on every such file system.
macro_rules! on_each {
    ($($promise:literal => $check:path),* $(,)?) => {
        &[$(
            flexvol_testing::Test {
                name: concat!("dir on xfs: ", $promise),
                needs: crate::dir::XFS,
                run: |points| $check(&crate::dir::Place::new("xfs"), points),
            },
            flexvol_testing::Test {
                name: concat!("dir on ext4: ", $promise),
                needs: crate::dir::EXT4,
                run: |points| $check(&crate::dir::Place::new("ext4"), points),
            },
            flexvol_testing::Test {
                name: concat!("dir on btrfs: ", $promise),
                needs: crate::dir::BTRFS,
                run: |points| $check(&crate::dir::Place::new("btrfs"), points),
            },
        )*]
    };
}
use on_each;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 16 * MIB;
const GROWN: u64 = 24 * MIB;

/// A node whose pool limits directories, and its driver.
struct Place {
    kind: &'static str,
    sandbox: Sandbox,
    driver: Driver,
}

impl Place {
    fn new(kind: &'static str) -> Self {
        Place::with(kind, true)
    }

    fn with(kind: &'static str, quotas: bool) -> Self {
        let sandbox = sandbox_on(kind, 512, quotas);
        let driver = install(&sandbox, "dir", "");
        Place {
            kind,
            sandbox,
            driver,
        }
    }

    fn volume(&self, name: &str) -> PersistentVolume {
        PersistentVolume::provision(&self.driver, name, "", SIZE)
    }

    fn pod<'a>(&'a self, volume: &'a PersistentVolume, uid: &str) -> Pod<'a> {
        Pod::new(&self.sandbox, &self.driver, volume, uid)
    }

    /// A pod that has the volume mounted, and lets everybody write into it.
    fn mounted<'a>(&'a self, volume: &'a PersistentVolume, uid: &str) -> Pod<'a> {
        let pod = self.pod(volume, uid);
        pod.mount("rw").success();
        open_to_all(pod.dir());
        pod
    }

    fn grow(&self, pod: &Pod<'_>, to: u64) -> Call {
        self.driver.call(&pod.expand_arguments(to, SIZE))
    }

    fn delete(&self, volume: &PersistentVolume) -> Call {
        self.driver.call(&["delete", &volume.json("rw")])
    }

    /// The volume's root in the pool.
    fn directory(&self, volume: &PersistentVolume) -> PathBuf {
        volume.root(&self.sandbox)
    }

    /// What holds it, and what is known of it.
    fn around(&self, volume: &PersistentVolume) -> PathBuf {
        volume.image(&self.sandbox)
    }

    fn volumes(&self) -> PathBuf {
        self.sandbox.pool().join("volumes")
    }

    /// Whether it limits by projects.
    fn has_projects(&self) -> bool {
        self.kind != "btrfs"
    }

    /// What a full volume says.
    fn full(&self) -> &'static str {
        match self.kind {
            "xfs" => "No space left on device",
            _ => "Disk quota exceeded",
        }
    }
}

/// A sandbox whose pool lies on such a file system.
pub fn sandbox_on(kind: &'static str, mebibytes: u64, quotas: bool) -> Sandbox {
    let filesystem = PoolFilesystem {
        kind,
        mebibytes,
        quotas,
    };
    Sandbox::with_pool_on(&executable(), filesystem)
}

/// A driver of that name on the sandbox's pool; `more` are keys of the pool.
pub fn install(sandbox: &Sandbox, name: &str, more: &str) -> Driver {
    let pool = sandbox.pool();
    let text =
        format!("backend = \"dir\"\n[pools.default]\npath = {pool:?}\nreserve = \"5%\"\n{more}\n");
    sandbox.install_with(&format!("example.com/{name}"), &text)
}

fn open_to_all(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
}

/// A shell of a user who is nobody, as in most pods.
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

/// Writes a file as nobody until it has so many bytes, or the write fails; what was said then.
fn write(dir: &Path, name: &str, bytes: u64) -> String {
    let script = format!("head -c {bytes} /dev/urandom >{name} && sync {name}");
    let Output { status, stderr, .. } = nobody(&script, dir).output().unwrap();
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.success(), said.is_empty(), "{said}");
    said
}

fn length(file: &Path) -> u64 {
    fs::metadata(file).unwrap().len()
}

/// What `df` says a directory can hold.
fn total(dir: &Path) -> u64 {
    let stat = nix::sys::statvfs::statvfs(dir).unwrap();
    stat.blocks() * stat.fragment_size()
}

#[track_caller]
fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    flexvol_testing::eventually(Duration::from_secs(5), what, is_so);
}

/// Runs a program that must succeed, and returns what it printed.
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
