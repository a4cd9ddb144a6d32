//! Checks of kubelet: its plugin directory, and whether kubelet and its containers see the mounts of drivers.

use crate::{
    check::Check,
    plugin::{PluginDir, expect_owned},
    processes::{Component, Process, processes},
};
use flexvol_storage::host::mountinfo::{self, Mount};
use nix::sys::statvfs::{FsFlags, statvfs};
use std::{
    fs,
    path::{Path, PathBuf},
};

const ELSEWHERE: &str = "set volumePluginDir in kubelet's configuration (and --flex-volume-plugin-dir of kube-controller-manager) to a writable directory such as /var/lib/kubelet/volumeplugins, and install there";

/// Returns the plugin directory, if it is known, with checks about it.
pub fn plugin_dir(named: Option<&Path>) -> (Option<PathBuf>, Vec<Check>) {
    const ABOUT: &str = "plugin directory";
    let dir = match PluginDir::find(named) {
        Ok(dir) => dir,
        Err(error) => {
            let check = Check::fail(
                ABOUT,
                super::super::report(&error),
                "name kubelet's plugin directory with --plugin-dir",
            );
            return (None, vec![check]);
        }
    };
    let found = format!("{} ({})", dir.path.display(), dir.known_from);
    // A directory that others may have written is reported, and nothing in it is run.
    if let Err(why) = expect_owned(&dir.path) {
        let why = super::super::report(&why);
        let remedy = format!(
            "chown root and chmod 755 what others can write on the way to {}, or name another with --plugin-dir",
            dir.path.display()
        );
        return (
            None,
            vec![Check::fail(ABOUT, format!("{found}: {why}"), remedy)],
        );
    }
    let check = match trouble(&dir.path) {
        None => Check::ok(ABOUT, found),
        Some((trouble, remedy)) => Check::fail(ABOUT, format!("{found}: {trouble}"), remedy),
    };
    (Some(dir.path), vec![check])
}

fn trouble(path: &Path) -> Option<(String, String)> {
    if let Err(error) = fs::metadata(path) {
        let remedy = "start kubelet, which makes it, or install a driver, which makes it too";
        return Some((error.to_string(), remedy.to_owned()));
    }
    match statvfs(path) {
        Ok(disk) if disk.flags().contains(FsFlags::ST_NOEXEC) => {
            return Some((
                "its file system is mounted noexec".to_owned(),
                ELSEWHERE.to_owned(),
            ));
        }
        Ok(_) => {}
        Err(error) => return Some((error.to_string(), ELSEWHERE.to_owned())),
    }
    // Kubelet ignores names that begin with a dot.
    let written = tempfile::Builder::new()
        .prefix(".flexvol-")
        .tempfile_in(path);
    let error = written.err()?;
    Some((format!("cannot be written: {error}"), ELSEWHERE.to_owned()))
}

/// Checks that mounts of a driver are visible where they must be.
pub fn checks() -> Vec<Check> {
    let kubelets: Vec<Process> = processes()
        .into_iter()
        .filter(|process| process.component == Component::Kubelet)
        .collect();
    if kubelets.is_empty() {
        return vec![Check::warn(
            "kubelet",
            "none can be seen that is root's and in no pod",
            "start kubelet, or run this as root where its processes can be seen (in a container: hostPID and SYS_PTRACE)",
        )];
    }
    kubelets.iter().map(propagation).collect()
}

/// Checks mount propagation. A driver mounts in kubelet's mount namespace, the container runtime is in that of
/// process 1. Unless they are the same, only a shared mount propagates volumes there.
fn propagation(kubelet: &Process) -> Check {
    let about = "mount propagation";
    let process = Path::new("/proc").join(kubelet.pid.to_string());
    let namespace = |process: &Path| {
        let path = process.join("ns/mnt");
        fs::read_link(&path).map_err(|error| format!("read {}: {error}", path.display()))
    };
    let (theirs, nodes) = match (namespace(&process), namespace(Path::new("/proc/1"))) {
        (Ok(theirs), Ok(nodes)) => (theirs, nodes),
        (Err(unreadable), _) | (_, Err(unreadable)) => {
            return Check::warn(
                about,
                format!("cannot see where kubelet's mounts go: {unreadable}"),
                "run this as root on the node",
            );
        }
    };
    let root = kubelet.root_dir.display();
    if theirs == nodes {
        return Check::ok(
            about,
            format!("kubelet lives in the node's mount namespace ({root})"),
        );
    }
    match fs::read(process.join("mountinfo")) {
        Ok(text) => match covering(&mountinfo::parse(&text), &kubelet.root_dir) {
            Some(mount) if mount.shared => {
                Check::ok(about, format!("{root} is shared by kubelet's container"))
            }
            _ => Check::fail(
                about,
                format!(
                    "kubelet runs in a container and {root} is not shared: pods would see empty directories"
                ),
                format!("mount {root} into kubelet's container with rshared propagation"),
            ),
        },
        Err(error) => Check::warn(about, error.to_string(), "run this as root on the node"),
    }
}

/// Returns the mount that covers a path: the longest one that leads to it, the last among equals.
pub fn covering<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.mount_point))
        .max_by_key(|mount| mount.mount_point.components().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_and_longest_mount_covers_a_path() {
        let text = b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
            2 1 0:5 / /run rw shared:2 - tmpfs tmpfs rw\n\
            3 1 0:6 / /run rw - ramfs ramfs rw\n\
            4 1 0:7 / /run/flexvol-more rw - xfs x rw\n";
        let mounts = mountinfo::parse(text);
        let covers = |path: &str| covering(&mounts, Path::new(path)).map(|mount| mount.id);
        assert_eq!(covers("/run/flexvol"), Some(3));
        assert_eq!(covers("/var"), Some(1));
        assert_eq!(covers("/run/flexvol-more/x"), Some(4));
    }

    #[test]
    fn a_directory_that_others_can_write_is_trouble_and_not_looked_into() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let (found, checks) = plugin_dir(Some(dir.path()));
        assert_eq!(found, None);
        let [check] = &checks[..] else {
            panic!("{checks:?}")
        };
        assert!(check.found.contains("others than root"), "{check:?}");
        assert!(check.remedy.as_ref().unwrap().contains("chmod 755"));
        assert!(trouble(Path::new("/nonexistent")).is_some());
    }
}
