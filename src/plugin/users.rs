//! Users of a driver: mounted volumes.

use super::DriverName;
use anyhow::{Context, Result, bail};
use flexvol_storage::host::mountinfo;
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

/// Whether a mount point is of the driver. Kubelet's directory for a pod's volume ends in
/// `pods/UID/volumes/vendor~driver/VOLUME` (`GetPath` in `pkg/volume/flexvolume/volume.go`), the one for an
/// attached volume in `plugins/kubernetes.io/flexvolume/vendor/driver/mounts/VOLUME` (`getDeviceMountPath`).
fn belongs_to(point: &Path, name: &DriverName) -> bool {
    let mut parts = point
        .components()
        .rev()
        .map(|part| part.as_os_str().to_string_lossy());
    let mut next = || parts.next().unwrap_or_default();
    let (_volume, parent) = (next(), next());
    if parent == "mounts" {
        let expected = [
            name.driver(),
            name.vendor(),
            "flexvolume",
            "kubernetes.io",
            "plugins",
        ];
        return expected.into_iter().all(|part| next() == part);
    }
    parent == name.directory() && next() == "volumes" && !next().is_empty() && next() == "pods"
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
