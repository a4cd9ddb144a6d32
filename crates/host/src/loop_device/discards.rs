//! Whether a loop device gives back the blocks of its image that are discarded above it.
//!
//! Since Linux 5.19 a loop device without discards punches no holes for zeroes that are written
//! without data either (`lo_fallocate` in drivers/block/loop.c): those are written out, and the
//! kernel's log has a line for the first of them. Older kernels punch; see
//! [`Pool::whole_image`](crate::pool::Pool::whole_image).

use crate::block::number::DeviceNumber;
use std::{fs, io};

fn limit(number: DeviceNumber, name: &str) -> String {
    format!("/sys/dev/block/{number}/queue/{name}")
}

fn is_zero(number: DeviceNumber, name: &str) -> io::Result<bool> {
    Ok(fs::read_to_string(limit(number, name))?.trim_end() == "0")
}

/// Takes discards from a device. Up to Linux 6.8 whatever sets its status gives them back.
///
/// Asked first: changing a limit stops the device's queue, for milliseconds.
pub(super) fn refuse(number: DeviceNumber) {
    const LARGEST: &str = "discard_max_bytes";
    let refused = match is_zero(number, LARGEST) {
        Ok(true) => Ok(()),
        _ => fs::write(limit(number, LARGEST), "0"),
    };
    // Where /sys cannot be written. What is given back is counted as promised all the same.
    if let Err(error) = refused {
        log::warn!("the volume's device still gives blocks back: {error}");
    }
}

/// Whether discards were taken from the device with this number, which may have been another's then:
/// newer kernels keep that over all files until the device is removed, and let nobody take it back
/// (`queue_discard_max_store` in block/blk-sysfs.c compares with a granularity that is zero then).
pub(super) fn are_refused(number: DeviceNumber) -> bool {
    is_zero(number, "discard_max_bytes").unwrap_or(false)
        && !is_zero(number, "discard_max_hw_bytes").unwrap_or(true)
}
