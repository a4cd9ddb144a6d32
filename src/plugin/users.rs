//! Who uses a driver now.

use super::DriverName;
use anyhow::{Context, Result, bail};
use flexvol_storage::host::mountinfo;
use std::{
    collections::BTreeSet,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

/// More volumes than a node has pods: beyond that it is not counted.
const ENOUGH: usize = 1000;

/// The directories of kubelet on which volumes of a driver are mounted, in every mount namespace
/// that can be seen.
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

/// Fails while volumes of a driver are mounted; `what` says what was to be done.
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

/// Kubelet's directory for a pod's volume ends in `pods/UID/volumes/vendor~driver/VOLUME`
/// (`GetPath` in `pkg/volume/flexvolume/volume.go`), the one for an attached volume in
/// `plugins/kubernetes.io/flexvolume/vendor/driver/mounts/VOLUME` (`getDeviceMountPath`).
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
