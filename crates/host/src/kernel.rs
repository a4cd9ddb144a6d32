//! What the running kernel offers, by asking it: version numbers say little about distributions'
//! kernels, and nothing about the filters that containers have on system calls.

use crate::sys;
use flexvol_sdk::{Error, ErrorKind, Result};
use rustix::io::Errno;
use std::{
    fs::{self, File},
    os::{fd::AsFd, unix::fs::FileTypeExt},
    path::Path,
};

/// A system call or ioctl that came after Linux 4.18, and what is done where it is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The call.
    pub name: &'static str,
    /// The version of Linux that brought it.
    pub since: &'static str,
    /// Whether the kernel has it and lets this process use it; `None` where that cannot be asked.
    pub offered: Option<bool>,
    /// What is done instead.
    pub instead: &'static str,
}

/// The release of the running kernel, as `uname -r` prints it.
#[must_use]
pub fn release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

/// Asks for every call that has a substitute. Nothing is changed by it: each call is made with
/// arguments that a kernel which knows it refuses.
#[must_use]
pub fn features() -> Vec<Feature> {
    use sys::kernel::Call;
    let feature = |name, since, offered, instead| Feature {
        name,
        since,
        offered,
        instead,
    };
    let knows = |call| Some(sys::kernel::knows(call));
    let by_mount = "mount, on a directory in a mount namespace of the driver's own";
    vec![
        feature("fsopen", "5.2", knows(Call::Fsopen), by_mount),
        feature("move_mount", "5.2", knows(Call::MoveMount), by_mount),
        feature(
            "openat2",
            "5.6",
            knows(Call::Openat2),
            "openat, one component of the path at a time",
        ),
        feature(
            "LOOP_CONFIGURE",
            "5.8",
            knows_loop_configure(),
            "LOOP_SET_FD and LOOP_SET_STATUS64",
        ),
        feature(
            "close_range",
            "5.11",
            knows(Call::CloseRange),
            "fcntl on each open descriptor",
        ),
        feature(
            "mount_setattr",
            "5.12",
            knows(Call::MountSetattr),
            "mount, to change how the bind mount is mounted",
        ),
        feature(
            "quotactl_fd",
            "5.14",
            knows(Call::QuotactlFd),
            "quotactl, by the node of the device",
        ),
    ]
}

/// Only a loop device can be asked; any will do, also one that is in use, because the descriptor
/// of the image is looked at first (`loop_configure` in the kernel's drivers/block/loop.c).
fn knows_loop_configure() -> Option<bool> {
    let entries = fs::read_dir("/sys/block").ok()?;
    let name = entries
        .flatten()
        .map(|entry| entry.file_name())
        .find(|name| name.to_string_lossy().starts_with("loop"))?;
    let device = File::open(Path::new("/dev").join(name)).ok()?;
    if !device.metadata().ok()?.file_type().is_block_device() {
        return None;
    }
    match sys::loops::configure_nothing(device.as_fd()) {
        Err(Errno::BADF) => Some(true),
        Err(Errno::INVAL | Errno::NOTTY) => Some(false),
        _ => None,
    }
}

/// Capabilities, as `linux/capability.h` numbers them.
pub const SYS_ADMIN: u32 = 21;
/// May do what is limited for others.
pub const SYS_RESOURCE: u32 = 24;

/// Whether this process has a capability.
///
/// # Errors
/// As for [`capabilities`].
pub fn has(capability: u32) -> Result<bool> {
    Ok(capabilities()? >> capability & 1 == 1)
}

/// The first user namespace: `PROC_USER_INIT_INO` in include/linux/proc_ns.h.
const FIRST_USERS: &str = "user:[4026531837]";

/// Whether this process has CAP_SYS_ADMIN where it counts for the whole node, and why not: the
/// kernel asks for it with `capable`, which the root of another user namespace never passes.
///
/// # Errors
/// The reason, for a message.
pub fn administers_node() -> Result<(), &'static str> {
    if !has(SYS_ADMIN).unwrap_or(false) {
        return Err("this process lacks CAP_SYS_ADMIN");
    }
    match fs::read_link("/proc/self/ns/user") {
        Ok(namespace) if namespace == Path::new(FIRST_USERS) => Ok(()),
        Ok(_) => Err(
            "this process has CAP_SYS_ADMIN in a user namespace of its own and not on the node; run it as root of the node (a pod: hostUsers: true)",
        ),
        Err(_) => Err("/proc does not tell whether this process has CAP_SYS_ADMIN on the node"),
    }
}

/// The capabilities of this process (`CapEff` in /proc/self/status), bit by bit as
/// `linux/capability.h` numbers them.
///
/// # Errors
/// When /proc does not tell.
pub fn capabilities() -> Result<u64> {
    let status = fs::read("/proc/self/status")
        .map_err(|error| Error::system("read this process's capabilities", error))?;
    // It begins with the name of the executable.
    let mask = String::from_utf8_lossy(&status)
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.ok_or_else(|| {
        Error::new(
            ErrorKind::Storage,
            "cannot understand this process's capabilities",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_changes_nothing_and_answers_the_same_again() {
        let first = features();
        assert_eq!(first, features());
        assert_eq!(first.len(), 7);
    }

    #[test]
    fn who_administers_the_node_may_do_so_in_the_first_user_namespace_only() {
        let first = fs::read_link("/proc/self/ns/user").unwrap() == Path::new(FIRST_USERS);
        let may = has(SYS_ADMIN).unwrap();
        assert_eq!(administers_node().is_ok(), first && may);
    }

    #[test]
    fn this_process_has_capabilities_or_none() {
        assert_eq!(capabilities().unwrap() >> 41, 0, "bits no kernel has");
    }
}
