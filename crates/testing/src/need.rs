//! Requirements of tests.

use crate::{isolation::arena, service_manager};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

/// A requirement of a test.
///
/// A missing program is a failure under `CI=true`; otherwise the test is reported as not run. A requirement that only
/// another machine can meet is never a failure here, because the layer `vm` runs the test in a virtual machine that
/// meets all of them; there, everything missing is a failure.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// Effective user 0.
    Root,
    /// A program in one of the system's directories, and its Debian package.
    Tool(&'static str, &'static str),
    /// Device-mapper in the kernel.
    DeviceMapper,
    /// Disks that may be overwritten: [`disks`].
    Disks,
    /// A kernel that supports this type of file system.
    Filesystem(&'static str),
    /// A kernel that supports project quotas on this type of file system: `ext4` or `xfs`.
    ProjectQuota(&'static str),
    /// A systemd that may take over the machine's control groups: [`ServiceManager`](crate::ServiceManager).
    Systemd,
    /// `CAP_SYS_RESOURCE`, without which a mounted ext4 cannot be grown.
    SysResource,
}

/// Requirements of tests that start virtual machines and inspect their disks. `scripts/lab vm` installs the programs.
pub const VIRTUAL_MACHINE: &[Need] = &[
    Need::Root,
    Need::Tool("qemu-system-x86_64", "qemu-system-x86"),
    Need::Tool("apt-get", "apt"),
    Need::Tool("cpio", "cpio"),
    Need::Tool("dpkg-deb", "dpkg"),
    Need::Tool("mkfs.ext4", "e2fsprogs"),
    Need::Tool("setpriv", "util-linux"),
    Need::Tool("strip", "binutils"),
    Need::Tool("xfs_repair", "xfsprogs"),
];

impl Need {
    /// Whether the machine itself must have it; it cannot be installed.
    pub(crate) fn is_of_the_machine(self) -> bool {
        !matches!(self, Need::Root | Need::Tool(..))
    }

    /// Whether the test needs the virtual machine, which meets every requirement. A file system that this kernel
    /// supports is tested here.
    pub(crate) fn wants_another(&self) -> bool {
        match *self {
            Need::Filesystem(kind) => !kernel_has(kind),
            other => other.is_of_the_machine(),
        }
    }

    /// Whether the test may change the machine permanently: disks, devices, processes.
    pub(crate) fn wants_fresh(&self) -> bool {
        matches!(self, Need::Disks | Need::DeviceMapper | Need::Systemd)
    }

    /// Returns the description of what is missing on this machine, to follow "no".
    ///
    /// # Panics
    /// When the machine cannot be examined.
    #[must_use]
    pub fn missing(self) -> Option<String> {
        let lacking = |there: bool, what: String| (!there).then_some(what);
        match self {
            Need::Root => lacking(nix::unistd::geteuid().is_root(), "root".to_owned()),
            Need::Tool(name, package) => {
                lacking(installed(name), format!("{name} (package {package})"))
            }
            Need::DeviceMapper => {
                let devices = fs::read_to_string("/proc/misc").unwrap_or_default();
                lacking(
                    devices.contains("device-mapper"),
                    "device-mapper".to_owned(),
                )
            }
            Need::Disks => lacking(in_virtual_machine(), "disks to overwrite".to_owned()),
            Need::Filesystem(kind) => lacking(kernel_has(kind), format!("{kind} in the kernel")),
            Need::ProjectQuota(kind) => {
                // Testing that takes seconds in the virtual machine, and a pool without quotas fails by itself.
                let has = in_virtual_machine() || limits_projects(kind);
                lacking(has, format!("project quotas on {kind}"))
            }
            Need::Systemd => lacking(
                in_virtual_machine() && Path::new(service_manager::PROGRAM).exists(),
                "systemd of its own".to_owned(),
            ),
            Need::SysResource => lacking(has_sys_resource(), "CAP_SYS_RESOURCE".to_owned()),
        }
    }
}

/// Whether this is the lab's virtual machine.
#[must_use]
pub fn in_virtual_machine() -> bool {
    env::var_os("FLEXVOL_VM").is_some_and(|vm| vm == "1")
}

/// Returns the factor for deadlines, relative to an idle machine. Other layers run at the same time, and the virtual
/// machine emulates every instruction.
#[must_use]
pub fn patience() -> u32 {
    if in_virtual_machine() { 20 } else { 5 }
}

/// Waits until a condition holds, at most `within` times [`patience`].
///
/// # Panics
/// When it did not hold in time.
#[track_caller]
pub fn eventually(within: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + within * patience();
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: never");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the disks of the virtual machine. They are blank when a test that needs them starts.
#[must_use]
pub fn disks() -> [PathBuf; 4] {
    ["vda", "vdb", "vdc", "vdd"].map(|name| Path::new("/dev").join(name))
}

fn installed(name: &str) -> bool {
    ["/usr/sbin", "/sbin", "/usr/bin", "/bin"]
        .iter()
        .any(|dir| Path::new(dir).join(name).exists())
}

fn kernel_has(kind: &str) -> bool {
    let kinds = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    kinds
        .lines()
        .any(|line| line.split('\t').next_back() == Some(kind))
}

/// Whether this process may grow a mounted ext4.
#[must_use]
pub fn has_sys_resource() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> CAP_SYS_RESOURCE & 1 == 1)
}

/// Tests once whether quotas work: some kernels accept the mount option and ignore it.
fn limits_projects(kind: &'static str) -> bool {
    static EXT4: OnceLock<bool> = OnceLock::new();
    static XFS: OnceLock<bool> = OnceLock::new();
    let (answer, options, mebibytes): (_, &[&str], _) = match kind {
        "ext4" => (
            &EXT4,
            &[
                "-q",
                "-F",
                "-O",
                "quota,project",
                "-E",
                "quotatype=prjquota",
            ],
            16,
        ),
        "xfs" => (&XFS, &["-q", "-K"], 320),
        _ => panic!("{kind} has no project quotas"),
    };
    *answer.get_or_init(|| {
        let dir = tempfile::tempdir_in(arena()).expect("make a directory");
        let (image, point) = (dir.path().join("image"), dir.path().join("point"));
        fs::create_dir(&point).expect("make a mount point");
        let file = fs::File::create_new(&image).expect("make an image");
        file.set_len(mebibytes << 20).expect("size an image");
        let quiet = |command: &mut Command| {
            let command = command.stdin(Stdio::null()).stdout(Stdio::null());
            command
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        };
        let made = quiet(
            Command::new(format!("mkfs.{kind}"))
                .args(options)
                .arg(&image),
        );
        let mut mount = Command::new("mount");
        mount
            .args(["-t", kind, "-o", "loop,prjquota"])
            .arg(&image)
            .arg(&point);
        if !made || !quiet(&mut mount) {
            return false;
        }
        let table = fs::read("/proc/self/mountinfo").expect("read mountinfo");
        let table = String::from_utf8_lossy(&table);
        let point = point.to_str().expect("a path that is text");
        let line = table
            .lines()
            .find(|line| line.split(' ').nth(4) == Some(point));
        let limited = line.is_some_and(|line| line.contains("prjquota"));
        nix::mount::umount2(point, nix::mount::MntFlags::empty()).expect("unmount");
        limited
    })
}
