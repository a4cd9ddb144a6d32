//! What there is to tell of a directory volume.

use super::{Mounts, VolumeReport};
use crate::observed::Content;
use flexvol_sdk::Bytes;

/// Completes the report of a volume with its mounts; it spans what it may take.
pub(crate) fn look(mounts: &Mounts, report: &mut VolumeReport) {
    let handle = report.handle;
    (report.mounts, report.elsewhere) = mounts.of(|mount| mount.is_within(&handle));
    report.is_directory = true;
    report.content = Content::Ours {
        size: report.asset.size,
        slack: Bytes(0),
    };
}
