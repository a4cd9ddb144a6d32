//! The running kernel, and the capabilities of this process.

use flexvol_sdk::{Error, ErrorKind, Result};
use std::{fs, path::Path};

/// The release of the running kernel, as `uname -r` prints it.
#[must_use]
pub fn release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

/// `CAP_SYS_ADMIN` of `linux/capability.h`.
pub const SYS_ADMIN: u32 = 21;
/// `CAP_SYS_RESOURCE`, which exempts from resource limits.
pub const SYS_RESOURCE: u32 = 24;

/// Whether this process has a capability.
///
/// # Errors
/// As for [`capabilities`].
pub fn has(capability: u32) -> Result<bool> {
    Ok(capabilities()? >> capability & 1 == 1)
}

/// The initial user namespace: `PROC_USER_INIT_INO` in include/linux/proc_ns.h.
const FIRST_USERS: &str = "user:[4026531837]";

/// Checks that this process has CAP_SYS_ADMIN in the initial user namespace.
///
/// Only there does the capability count for the whole node: the kernel checks it with `capable`, which root of another
/// user namespace never passes.
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

/// Returns the effective capabilities of this process (`CapEff` in /proc/self/status), a bit for each as
/// `linux/capability.h` numbers them.
///
/// # Errors
/// When /proc does not tell.
pub fn capabilities() -> Result<u64> {
    let status = fs::read("/proc/self/status")
        .map_err(|error| Error::system("read this process's capabilities", error))?;
    // The file begins with the executable's name, which need not be UTF-8.
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
