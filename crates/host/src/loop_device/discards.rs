//! Controls whether a loop device releases blocks of its image when they are discarded.
//!
//! Since Linux 5.19 a loop device without discards does not punch holes for write-zeroes requests either
//! (`lo_fallocate` in drivers/block/loop.c): the zeros are written, and the kernel logs the first of these requests.
//! Older kernels punch holes; see [`Pool::whole_image`](crate::pool::Pool::whole_image).

use crate::block::number::DeviceNumber;
use std::{fs, io};

fn limit(number: DeviceNumber, name: &str) -> String {
    format!("/sys/dev/block/{number}/queue/{name}")
}

fn is_zero(number: DeviceNumber, name: &str) -> io::Result<bool> {
    Ok(fs::read_to_string(limit(number, name))?.trim_end() == "0")
}

/// Disables discards on a device. Up to Linux 6.8, setting the loop device's status enables them again. The limit is
/// read first, because changing it freezes the device's queue for milliseconds.
pub(super) fn refuse(number: DeviceNumber) {
    const LARGEST: &str = "discard_max_bytes";
    let refused = match is_zero(number, LARGEST) {
        Ok(true) => Ok(()),
        _ => fs::write(limit(number, LARGEST), "0"),
    };
    // For example because /sys is read-only. Blocks that are given back still count as promised.
    if let Err(error) = refused {
        log::warn!("the volume's device still gives blocks back: {error}");
    }
}

/// Whether discards were disabled on this device, possibly for an earlier image. Newer kernels keep the limit across
/// attachments until the device is removed, and do not let it be raised again (`queue_discard_max_store` in
/// block/blk-sysfs.c compares with a granularity that is zero then).
pub(super) fn are_refused(number: DeviceNumber) -> bool {
    is_zero(number, "discard_max_bytes").unwrap_or(false)
        && !is_zero(number, "discard_max_hw_bytes").unwrap_or(true)
}
