//! Mounts of volumes, looked up for many volumes at once.

use crate::volume_report::VolumeReport;
use flexvol_host::{
    DeviceNumber, VolumeId,
    mountinfo::{self, Line, Mount, Subtree},
};
use flexvol_sdk::Result;
use std::{cell::RefCell, collections::HashMap, ops::ControlFlow, os::fd::BorrowedFd};

/// Most places of a volume to report that only other mount namespaces have: a pod may mount parts of its volume
/// any number of times.
const PLACES: usize = 64;

/// What the mounts of a volume have in common.
#[derive(Debug)]
pub(crate) enum Shown {
    Device(DeviceNumber),
    Directory(Subtree),
}

impl Shown {
    fn is_of(&self, mount: &Mount) -> bool {
        match self {
            Shown::Device(number) => mount.is_of(*number),
            Shown::Directory(subtree) => subtree.has_mount(mount),
        }
    }

    fn is_on(&self, line: &Line<'_>) -> bool {
        match self {
            Shown::Device(number) => line.is_of(*number),
            Shown::Directory(subtree) => subtree.has(line),
        }
    }
}

/// The mounts of this mount namespace, read once for all volumes, and the volumes to look for in others.
#[derive(Debug)]
pub struct Mounts {
    here: Vec<Mount>,
    shown: RefCell<Vec<(VolumeId, Shown)>>,
}

impl Mounts {
    pub(crate) fn read() -> Result<Self> {
        Ok(Mounts {
            here: mountinfo::read()?,
            shown: RefCell::default(),
        })
    }

    /// Returns the roots of all mounts of a directory, or of a part of it.
    pub(crate) fn subtree(&self, directory: BorrowedFd<'_>) -> Result<Subtree> {
        Subtree::of(directory, &self.here)
    }

    /// Returns the mounts of one volume in this namespace. [`Mounts::look_elsewhere`] finds the others.
    pub(crate) fn of(&self, volume: VolumeId, shown: Shown) -> Vec<Mount> {
        let of_volume = self.here.iter().filter(|mount| shown.is_of(mount));
        let of_volume = of_volume.cloned().collect();
        self.shown.borrow_mut().push((volume, shown));
        of_volume
    }

    /// Adds the places that only other mount namespaces have to the reports of volumes, in one pass for all of
    /// them.
    pub(crate) fn look_elsewhere<'a>(
        self,
        reports: impl IntoIterator<Item = &'a mut VolumeReport>,
    ) -> Result<()> {
        let mut reports: HashMap<VolumeId, &mut VolumeReport> = reports
            .into_iter()
            .map(|report| (report.id, report))
            .collect();
        let shown = self.shown.into_inner();
        mountinfo::find_anywhere(|line| {
            for (volume, shown) in &shown {
                let Some(report) = reports.get_mut(volume) else {
                    continue;
                };
                if report.elsewhere.len() < PLACES && shown.is_on(line) {
                    let place = line.mount_point();
                    let is_here = report.mounts.iter().any(|it| it.mount_point == place);
                    if !is_here && !report.elsewhere.contains(&place) {
                        report.elsewhere.push(place);
                    }
                }
            }
            ControlFlow::Continue(())
        })
        .map(drop)
    }
}
