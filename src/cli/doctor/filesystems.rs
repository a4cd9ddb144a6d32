//! Checks of the file systems that volumes may hold.

use crate::check::{Check, Verdict};
use crate::config::Config;
use flexvol_storage::{
    host::{exec::Tool, kernel},
    sdk::Filesystem,
};
use std::{fs, path::Path};

const PROGRAMS: &str = "or put a static one into /var/lib/flexvol/bin";

pub fn checks(configs: &[&Config]) -> Vec<Check> {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let modules = modules();
    let mut checks: Vec<Check> = Filesystem::ALL
        .into_iter()
        .map(|filesystem| {
            check(
                filesystem,
                is_default(filesystem, configs),
                in_kernel(filesystem, &known, modules.as_deref()),
            )
        })
        .collect();
    checks.push(growth_offline());
    checks
}

/// Whether a pool uses it for volumes that ask for none. Backends that do not format are ignored.
fn is_default(filesystem: Filesystem, configs: &[&Config]) -> bool {
    let configs = configs.iter().filter(|config| config.backend.formats);
    let mut pools = configs.flat_map(|config| config.pools.values());
    pools.any(|pool| pool.policy.filesystem == filesystem)
}

/// The kernel's support for a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InKernel {
    Yes,
    /// As a module, loaded on demand.
    AsModule,
    No,
    /// Unknown, because this process cannot see the kernel's modules.
    Unseen,
}

fn in_kernel(filesystem: Filesystem, known: &str, modules: Option<&str>) -> InKernel {
    let name = filesystem.as_str();
    if known
        .lines()
        .any(|line| line.split_whitespace().last() == Some(name))
    {
        return InKernel::Yes;
    }
    // ext3 comes with ext4 (register_as_ext3 in the kernel's fs/ext4/super.c).
    let module = match filesystem {
        Filesystem::Ext3 => "ext4",
        _ => name,
    };
    let Some(modules) = modules else {
        return InKernel::Unseen;
    };
    let file = format!("/{module}.ko");
    // modules.dep: `kernel/fs/xfs/xfs.ko.xz: kernel/lib/libcrc32c.ko.xz`
    let is_there = modules.lines().any(|line| {
        let path = line.split(':').next().unwrap_or_default();
        path.contains(&file)
    });
    if is_there {
        InKernel::AsModule
    } else {
        InKernel::No
    }
}

fn modules() -> Option<String> {
    let path = Path::new("/lib/modules").join(kernel::release());
    fs::read_to_string(path.join("modules.dep")).ok()
}

/// Checks one file system. Volumes get the pool's by default, so only that one must work; others only cause
/// warnings.
fn check(filesystem: Filesystem, is_default: bool, in_kernel: InKernel) -> Check {
    let about = filesystem.as_str();
    let missing = if is_default {
        Verdict::Fail
    } else {
        Verdict::Warn
    };
    let whom = if is_default {
        "volumes of this driver cannot be mounted"
    } else {
        "volumes that ask for it cannot be mounted"
    };
    let kernel = match in_kernel {
        InKernel::Yes => "in the kernel",
        InKernel::AsModule => "a module of the kernel",
        InKernel::No => {
            return Check {
                verdict: missing,
                ..Check::warn(
                    about,
                    format!("the kernel does not have it: {whom}"),
                    format!("install the kernel's module {about} (linux-modules-extra on Ubuntu)"),
                )
            };
        }
        InKernel::Unseen => "not loaded, and this process sees no modules",
    };
    let program = format!("mkfs.{about}");
    match Tool::find(&program) {
        Ok(tool) => {
            let found = format!("{kernel}, {}", tool.path().display());
            match in_kernel {
                InKernel::Unseen => Check::warn(
                    about,
                    found,
                    format!("run this on the node itself, or modprobe {about} there"),
                ),
                _ => Check::ok(about, found),
            }
        }
        Err(error) => Check {
            verdict: missing,
            ..Check::warn(
                about,
                format!("{kernel}; {error}: new volumes cannot be formatted with it"),
                format!("install that package, {PROGRAMS}"),
            )
        },
    }
}

/// Checks the tools that grow ext4 where the kernel refuses to grow it while it is mounted.
fn growth_offline() -> Check {
    let about = "ext4 offline growth";
    let missing: Vec<String> = ["e2fsck", "resize2fs", "debugfs"]
        .into_iter()
        .filter_map(|program| Tool::find(program).err())
        .map(|error| error.to_string())
        .collect();
    if missing.is_empty() {
        return Check::ok(about, "e2fsck, resize2fs, debugfs");
    }
    Check::warn(
        about,
        format!(
            "{}: an ext4 that the kernel refuses to grow mounted stays as it is",
            missing.join(", ")
        ),
        format!("install that package, {PROGRAMS}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lists_are_understood() {
        let known = "nodev\tsysfs\nnodev\ttmpfs\n\text3\n\text4\n";
        let modules =
            "kernel/fs/xfs/xfs.ko.xz: kernel/lib/libcrc32c.ko.xz\nkernel/a/notbtrfs.ko:\n";
        for (filesystem, modules, found) in [
            (Filesystem::Ext4, None, InKernel::Yes),
            (Filesystem::Ext3, None, InKernel::Yes),
            (Filesystem::Xfs, Some(modules), InKernel::AsModule),
            (Filesystem::Xfs, None, InKernel::Unseen),
            (Filesystem::Btrfs, Some(modules), InKernel::No),
        ] {
            assert_eq!(in_kernel(filesystem, known, modules), found, "{filesystem}");
        }
        let ext4 = "kernel/fs/ext4/ext4.ko:";
        assert_eq!(
            in_kernel(Filesystem::Ext3, "", Some(ext4)),
            InKernel::AsModule
        );
    }

    #[test]
    fn pools_of_directories_format_nothing() {
        let config = |text| Config::parse(text, "flexvol").unwrap();
        let images = config("backend = \"loop\"\n");
        let directories = config("backend = \"dir\"\n");
        for (configs, is_used) in [
            (&[&directories][..], false),
            (&[&images], true),
            (&[&directories, &images], true),
            (&[], false),
        ] {
            assert_eq!(is_default(Filesystem::Xfs, configs), is_used);
            assert!(!is_default(Filesystem::Ext4, configs));
        }
    }

    #[test]
    fn only_what_a_pool_uses_by_default_must_be_there() {
        let verdict = |is_default| check(Filesystem::Xfs, is_default, InKernel::No).verdict;
        assert_eq!(
            [verdict(true), verdict(false)],
            [Verdict::Fail, Verdict::Warn]
        );
    }
}
