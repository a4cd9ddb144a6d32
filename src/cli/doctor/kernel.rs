//! Checks of the kernel, and of this process's permissions.

use crate::check::{Check, Verdict};
use flexvol_storage::host::{kernel, mountinfo};
use std::{
    fs::{self, DirBuilder, OpenOptions},
    io,
    os::unix::{fs::DirBuilderExt, net::UnixDatagram},
    path::Path,
};

/// The oldest kernel on which everything was tested.
const OLDEST: (u32, u32) = (4, 18);

/// Capabilities (linux/capability.h), their purpose, and the verdict if one is missing.
const CAPABILITIES: [(u32, &str, &str, Verdict); 3] = [
    (
        kernel::SYS_ADMIN,
        "CAP_SYS_ADMIN",
        "mounts and marks volumes",
        Verdict::Fail,
    ),
    (
        kernel::SYS_RESOURCE,
        "CAP_SYS_RESOURCE",
        "grows ext4 and ext3 while they are mounted; without it they grow when no pod uses them",
        Verdict::Warn,
    ),
    (
        27,
        "CAP_MKNOD",
        "makes device nodes where /dev lacks them",
        Verdict::Warn,
    ),
];

/// The device through which loop devices are requested.
const LOOP_CONTROL: &str = "/dev/loop-control";

/// The sockets of the log (crates/sdk/src/log.rs).
const LOGS: [&str; 2] = ["/run/systemd/journal/socket", "/dev/log"];

pub fn checks() -> Vec<Check> {
    let mut checks = capabilities();
    checks.extend([
        version(&kernel::release()),
        loop_devices(),
        runtime_directory(Path::new("/run/flexvol")),
        log(),
    ]);
    checks
}

fn capabilities() -> Vec<Check> {
    match kernel::capabilities() {
        // In its own user namespace a process has all capabilities, but none over the node.
        Ok(mask) if mask >> kernel::SYS_ADMIN & 1 == 1 && kernel::administers_node().is_err() => {
            vec![Check::fail(
                "capabilities",
                "this process has them in a user namespace of its own, not on the node",
                "run as root of the node; a pod needs hostUsers: true",
            )]
        }
        Ok(mask) => missing(mask),
        Err(error) => vec![Check::fail(
            "capabilities",
            error.report(),
            "mount /proc where this runs",
        )],
    }
}

fn missing(mask: u64) -> Vec<Check> {
    let lacks = |bit: &u32| mask >> bit & 1 == 0;
    let checks: Vec<Check> = CAPABILITIES
        .iter()
        .filter(|(bit, ..)| lacks(bit))
        .map(|(_, name, purpose, verdict)| Check {
            verdict: *verdict,
            ..Check::warn(
                *name,
                format!("this process lacks it: it {purpose}"),
                "run as root on the node; where kubelet runs in a container, make that privileged",
            )
        })
        .collect();
    if checks.is_empty() {
        let names = CAPABILITIES.map(|(_, name, ..)| name).join(" ");
        return vec![Check::ok("capabilities", names)];
    }
    checks
}

fn version(release: &str) -> Check {
    let about = "kernel";
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse::<u32>().ok());
    let version = (|| Some((numbers.next()??, numbers.next()??)))();
    match version {
        Some(version) if version >= OLDEST => Check::ok(about, release),
        Some(_) => Check::fail(
            about,
            format!("{release} is older than {}.{}", OLDEST.0, OLDEST.1),
            "upgrade the node's kernel",
        ),
        None => Check::warn(
            about,
            format!("{release:?} is no version of Linux as it writes them"),
            format!("see that it is at least {}.{}", OLDEST.0, OLDEST.1),
        ),
    }
}

fn loop_devices() -> Check {
    let about = "loop devices";
    let opened = OpenOptions::new().read(true).write(true).open(LOOP_CONTROL);
    let misc = fs::read_to_string("/proc/misc").unwrap_or_default();
    let has_driver = misc
        .lines()
        .any(|line| line.split_whitespace().nth(1) == Some("loop-control"));
    match opened {
        Ok(_) => Check::ok(about, LOOP_CONTROL),
        Err(error) if error.kind() == io::ErrorKind::NotFound && has_driver => Check::ok(
            about,
            format!(
                "the kernel has them, {LOOP_CONTROL} is missing; the driver makes its own nodes"
            ),
        ),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Check::fail(
            about,
            format!("no {LOOP_CONTROL}, and the kernel lists no loop-control"),
            "modprobe loop, and write loop into /etc/modules-load.d/flexvol.conf",
        ),
        Err(error) => Check::fail(
            about,
            format!("open {LOOP_CONTROL}: {error}"),
            "run as root; a container must be privileged, or its device cgroup allow b 7:* and c 10:237",
        ),
    }
}

/// Checks the runtime directory. Locks and hints must disappear at a reboot, as loop devices do.
fn runtime_directory(path: &Path) -> Check {
    let about = path.display().to_string();
    let written = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .and_then(|()| {
            tempfile::Builder::new()
                .prefix(".doctor-")
                .tempfile_in(path)
        });
    if let Err(error) = written {
        return Check::fail(
            about,
            format!("cannot be written: {error}"),
            "run as root, with /run mounted read-write",
        );
    }
    match mountinfo::read() {
        Ok(mounts) => match super::kubernetes::covering(&mounts, path) {
            Some(mount) if ["tmpfs", "ramfs"].contains(&mount.filesystem.as_str()) => {
                Check::ok(about, format!("writable, on {}", mount.filesystem))
            }
            Some(mount) => Check::warn(
                about,
                format!("on {}, which a reboot does not empty", mount.filesystem),
                "mount a tmpfs on /run; until then locks of volumes that are gone stay there",
            ),
            None => Check::warn(about, "no mount table names its file system", "mount /proc"),
        },
        Err(error) => Check::warn(about, error.report(), "mount /proc"),
    }
}

/// Checks the log. Without one a driver works, but its actions cannot be traced.
fn log() -> Check {
    let listening = LOGS.into_iter().find(|path| {
        let connected = UnixDatagram::unbound().and_then(|socket| socket.connect(path));
        connected.is_ok()
    });
    match listening {
        Some(path) => Check::ok("log", path),
        None => Check::warn(
            "log",
            format!("no listener on {}", LOGS.join(" or ")),
            "run systemd-journald or a syslog daemon; without one only replies tell what happened",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_capability_has_a_check_of_its_own() {
        assert_eq!(missing(u64::MAX).len(), 1);
        assert_eq!(missing(u64::MAX)[0].verdict, Verdict::Ok);
        let checks = missing(!(1 << 24));
        assert_eq!(checks.len(), 1);
        assert_eq!(checks[0].about, "CAP_SYS_RESOURCE");
        assert_eq!(checks[0].verdict, Verdict::Warn);
        let verdicts: Vec<_> = missing(0).iter().map(|check| check.verdict).collect();
        assert_eq!(verdicts, [Verdict::Fail, Verdict::Warn, Verdict::Warn]);
    }

    #[test]
    fn kernels_are_compared_by_number() {
        for (release, verdict) in [
            ("6.18.5-amd64", Verdict::Ok),
            ("4.18.0-553.el8.x86_64", Verdict::Ok),
            ("5.4", Verdict::Ok),
            ("4.9.0", Verdict::Fail),
            ("3.10.0-1160", Verdict::Fail),
            ("", Verdict::Warn),
        ] {
            assert_eq!(version(release).verdict, verdict, "{release}");
        }
    }
}
