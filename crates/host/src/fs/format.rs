//! Makes file systems with their mkfs tools.

use crate::{
    block::{
        device::Device,
        probe::{self, Content, Proof},
    },
    exec::{AtDeadline, Limits, Tool},
    lock,
    uuid::Uuid,
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Filesystem, Result};
use std::{ffi::OsString, os::fd::AsFd, time::Duration};

/// Time to wait for `mkfs`. The program is never killed: a half-made file system costs an administrator's time.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Smallest device for this file system with its journal or both copies of its metadata.
///
/// mkfs.xfs (since 5.19) and mkfs.btrfs refuse smaller ones. mke2fs silently leaves out the journal below 8 MiB, which
/// makes an ext3 an ext2.
#[must_use]
pub fn minimum(filesystem: Filesystem) -> Bytes {
    match filesystem {
        Filesystem::Xfs => Bytes(300 << 20),
        Filesystem::Btrfs => Bytes(128 << 20),
        _ => Bytes(16 << 20),
    }
}

/// State of the device that a file system is made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MkfsTarget {
    /// The tool must not discard the device's blocks, which would give back what was preallocated.
    pub keep_allocation: bool,
    /// What was proven to be zero.
    pub proof: Proof,
}

/// Makes a file system over the whole device, and destroys what was there.
///
/// The caller has proven that nothing was there (see [`probe::prove`]), or that an earlier call was interrupted while
/// it made a file system. Blocks are always 4 KiB: the smaller ones that the tools choose for small devices end the
/// growth of ext4 early. The tool inherits `hold` and the device.
///
/// # Errors
/// - [`ErrorKind::Invalid`]: the device is too small.
/// - [`ErrorKind::Busy`]: the device is in use, possibly in another mount namespace.
/// - [`ErrorKind::ToolMissing`], [`ErrorKind::TimedOut`].
/// - [`ErrorKind::Storage`]: the tool failed, or did not make what was asked for. The device is then half-made.
pub fn mkfs(
    device: &Device,
    filesystem: Filesystem,
    uuid: Uuid,
    target: MkfsTarget,
    hold: &lock::Guard,
) -> Result<()> {
    let (size, minimum) = (device.size()?, minimum(filesystem));
    if size < minimum {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("{filesystem} needs a volume of {minimum:#} or more, this one has {size:#}"),
        ));
    }
    let tool = Tool::find(&format!("mkfs.{filesystem}"))?;
    // The tool claims the device itself and refuses one that is claimed. So this claim only checks, and the volume's
    // lock keeps the result true.
    drop(device.claim()?);
    let mut arguments = arguments(filesystem, uuid, size, target);
    arguments.push(device.path().as_os_str().to_owned());
    let arguments: Vec<_> = arguments.iter().map(OsString::as_os_str).collect();
    let limits = Limits {
        deadline: TIMEOUT,
        at_deadline: AtDeadline::Leave,
        inherit: &[hold.as_fd(), device.file().as_fd()],
    };
    tool.run(&arguments, &limits)?
        .success(&format!("make the {filesystem}"))?;
    device.sync()?;
    match probe::quick(device) {
        Content::Formatted(found) if found.filesystem == filesystem && found.uuid == uuid => Ok(()),
        found => {
            let found = match found {
                Content::Blank => "nothing".to_owned(),
                Content::Formatted(found) => format!("{} {}", found.filesystem, found.uuid),
                Content::Foreign(what) => what.to_owned(),
                Content::Unreadable => "nothing that can be read".to_owned(),
            };
            Err(Error::new(
                ErrorKind::Storage,
                format!(
                    "cannot make the {filesystem}: the tool succeeded and something else is there"
                ),
            )
            .because(format!("found {found} instead of {filesystem} {uuid}")))
        }
    }
}

/// Most blocks in a group: the group's bitmap, a bit for each block, is one block of 4 KiB.
const MOST: u64 = 8 * 4096;

/// Returns the tool's arguments except the device. Everything else is left to the tool's defaults, which fit the kernel
/// that it was released with.
fn arguments(filesystem: Filesystem, uuid: Uuid, size: Bytes, target: MkfsTarget) -> Vec<OsString> {
    let keep_allocation = target.keep_allocation;
    let uuid = uuid.to_string();
    let words: Vec<String> = match filesystem {
        // The kernel zeroes inode tables later. Remains of an earlier journal in the place of the new one could be
        // replayed after a crash, so zeroing the journal is skipped only on a device that is zero there.
        Filesystem::Ext3 | Filesystem::Ext4 => {
            let discard = if keep_allocation {
                "nodiscard"
            } else {
                "discard"
            };
            let is_zero = u8::from(target.proof == Proof::Whole);
            let extended = format!("{discard},lazy_itable_init=1,lazy_journal_init={is_zero}");
            [
                "-q",
                "-F",
                "-b",
                "4096",
                "-m",
                "0",
                "-e",
                "remount-ro",
                "-E",
            ]
            .into_iter()
            .map(str::to_owned)
            .chain([extended, "-U".to_owned(), uuid])
            .chain(["-g".to_owned(), blocks_of_a_group(size).to_string()])
            .collect()
        }
        Filesystem::Xfs => ["-q", "-f", "-b", "size=4096", "-m"]
            .into_iter()
            .map(str::to_owned)
            .chain([format!("uuid={uuid}")])
            .chain(keep_allocation.then(|| "-K".to_owned()))
            .collect(),
        _ => ["-q", "-f", "-s", "4096", "-U"]
            .into_iter()
            .map(str::to_owned)
            .chain([uuid])
            .chain(keep_allocation.then(|| "-K".to_owned()))
            .collect(),
    };
    words.into_iter().map(OsString::from).collect()
}

/// Returns mke2fs' default, but small enough for two groups: the second group begins with a copy of the superblock,
/// which is needed to tell a torn superblock from a damaged one.
fn blocks_of_a_group(size: Bytes) -> u64 {
    let half = size.0 / 4096 / 2;
    half.checked_ilog2().map_or(MOST, |log| 1 << log).min(MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_on_old_data_is_zeroed() {
        let uuid = Uuid::from_bytes([7; 16]);
        for (proof, lazy) in [(Proof::Whole, "=1"), (Proof::Ends, "=0")] {
            let target = MkfsTarget {
                keep_allocation: true,
                proof,
            };
            let words = arguments(Filesystem::Ext3, uuid, Bytes(1 << 30), target);
            let ending = format!("lazy_journal_init{lazy}");
            let is_told = |word: &OsString| word.to_string_lossy().ends_with(&ending);
            assert!(words.iter().any(is_told), "{proof:?}: {words:?}");
        }
    }

    #[test]
    fn a_preallocated_device_is_never_discarded() {
        let uuid = Uuid::from_bytes([7; 16]);
        for filesystem in Filesystem::ALL {
            let target = MkfsTarget {
                keep_allocation: true,
                proof: Proof::Whole,
            };
            let words = arguments(filesystem, uuid, Bytes(1 << 30), target);
            let kept = words
                .iter()
                .any(|word| *word == "-K" || word.to_string_lossy().starts_with("nodiscard,"));
            assert!(kept, "{filesystem}: {words:?}");
        }
    }

    #[test]
    fn a_small_ext4_has_two_groups_too() {
        let blocks = |mebibytes: u64| blocks_of_a_group(Bytes(mebibytes << 20));
        assert_eq!([16, 64, 127, 128].map(blocks), [2048, 8192, 8192, 16384]);
        assert_eq!([256, 1 << 20].map(blocks), [MOST, MOST]);
    }
}
