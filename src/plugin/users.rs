//! Users of a driver: mounted volumes.

use super::DriverName;
use anyhow::{Context, Result, bail};
use flexvol_storage::{host::mountinfo, sdk::PodVolumeDir};
use std::{
    collections::BTreeSet,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

/// Limit on counting, above the number of volumes that a node can have.
const ENOUGH: usize = 1000;

/// Returns kubelet's directories on which volumes of a driver are mounted, in every visible mount namespace.
fn mounted(name: &DriverName) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let stopped = mountinfo::find_anywhere(|line| {
        let point = line.mount_point();
        if belongs_to(&point, name) {
            found.insert(point);
        }
        match found.len() < ENOUGH {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    });
    stopped.context("find the volumes that are mounted")?;
    Ok(found)
}

/// Fails if volumes of a driver are mounted; `what` names the refused action.
pub(super) fn refuse_while_mounted(name: &DriverName, what: &str) -> Result<()> {
    let mounted = mounted(name)?;
    let Some(first) = mounted.first() else {
        return Ok(());
    };
    bail!(
        "cannot {what} while its volumes are mounted: {} on this node, the first on {}; move the pods that use them to another node (kubectl drain) and try again",
        mounted.len(),
        first.display()
    )
}

/// Whether a mount point is of the driver: a pod's directory for a volume, or kubelet's own for an attached volume, which
/// ends in `plugins/kubernetes.io/flexvolume/vendor/driver/mounts/VOLUME` (`getDeviceMountPath`).
fn belongs_to(point: &Path, name: &DriverName) -> bool {
    if let Some(dir) = PodVolumeDir::of(point) {
        return dir.plugin == name.directory().as_str();
    }
    let expected = [
        "mounts",
        name.driver(),
        name.vendor(),
        "flexvolume",
        "kubernetes.io",
        "plugins",
    ];
    let parts = point.iter().rev().skip(1).take(expected.len());
    parts.eq(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_belong_to_exactly_one_driver() {
        let name = "example.com/flexvol".parse().unwrap();
        for (path, belongs) in [
            (
                "/var/lib/kubelet/pods/u/volumes/example.com~flexvol/pv",
                true,
            ),
            ("/x/pods/u/volumes/example.com~flexvol/pv", true),
            (
                "/k/plugins/kubernetes.io/flexvolume/example.com/flexvol/mounts/pv",
                true,
            ),
            ("/k/pods/u/volumes/example.com~flexvol2/pv", false),
            ("/k/pods/u/volumes/xexample.com~flexvol/pv", false),
            ("/k/pods/u/volumes/example.com~flexvol/pv/sub", false),
            ("/k/pods/u/volumes/example.com~flexvol", false),
            (
                "/k/plugins/kubernetes.io/flexvolume/example.com/other/mounts/pv",
                false,
            ),
            ("/example.com~flexvol/pv", false),
            ("/", false),
        ] {
            assert_eq!(belongs_to(Path::new(path), &name), belongs, "{path}");
        }
    }
}
