//! Making file systems, by the tool of each.

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

/// How long `mkfs` may take before this process stops waiting. It is never cut: half a file system
/// costs a person's time.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The smallest device that takes this file system with its journal or both copies of its
/// metadata: mkfs.xfs (since 5.19) and mkfs.btrfs refuse smaller ones, mke2fs silently leaves out
/// the journal below 8 MiB, which makes ext3 an ext2.
#[must_use]
pub fn minimum(filesystem: Filesystem) -> Bytes {
    match filesystem {
        Filesystem::Xfs => Bytes(300 << 20),
        Filesystem::Btrfs => Bytes(128 << 20),
        _ => Bytes(16 << 20),
    }
}

/// What a file system is made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ground {
    /// The tool must not discard the device's blocks, which would give back what was preallocated.
    pub keep_allocation: bool,
    /// What was proven to be zero.
    pub proof: Proof,
}

/// Makes a file system over the whole device. Whatever was there is lost: the caller has proven
/// that nothing was (see [`probe::prove`]), or that it was itself interrupted making one.
///
/// Blocks are always of 4 KiB: the tools' smaller choice for small devices
/// ends the growth of ext4 early. The tool holds `hold` and the device too.
///
/// # Errors
/// - [`ErrorKind::Invalid`]: the device is too small.
/// - [`ErrorKind::Busy`]: the device is in use, somewhere.
/// - [`ErrorKind::ToolMissing`], [`ErrorKind::TimedOut`].
/// - [`ErrorKind::Storage`]: the tool failed, or what it made is not what was asked for. The
///   device is then half-made.
pub fn mkfs(
    device: &Device,
    filesystem: Filesystem,
    uuid: Uuid,
    ground: Ground,
    hold: &lock::Guard,
) -> Result<()> {
    let (size, minimum) = (device.size()?, minimum(filesystem));
    if size < minimum {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("{filesystem} needs a volume of {minimum} or more, this one has {size}"),
        ));
    }
    let tool = Tool::find(&format!("mkfs.{filesystem}"))?;
    // The tool claims the device itself and refuses one that is claimed, so this claim only finds
    // out, and the volume's lock keeps it true.
    drop(device.claim()?);
    let mut arguments = arguments(filesystem, uuid, size, ground);
    arguments.push(device.path().as_os_str().to_owned());
    let arguments: Vec<_> = arguments.iter().map(OsString::as_os_str).collect();
    let limits = Limits {
        deadline: TIMEOUT,
        at_deadline: AtDeadline::Leave,
        hold: &[hold.as_fd(), device.file().as_fd()],
    };
    tool.run(&arguments, &limits)?
        .success(&format!("make the {filesystem}"))?;
    device.sync()?;
    match probe::quick(device) {
        Content::Formatted(found) if found.filesystem == filesystem && found.uuid == uuid => Ok(()),
        found => Err(Error::new(
            ErrorKind::Storage,
            format!("cannot make the {filesystem}: the tool succeeded and something else is there"),
        )
        .because(format!("{found:?} instead of {uuid}"))),
    }
}

/// A bit for each block of a group in one block of 4 KiB.
const MOST: u64 = 8 * 4096;

/// Everything but the device. What is not said here is the tool's default and so fits the kernel
/// it came with.
fn arguments(filesystem: Filesystem, uuid: Uuid, size: Bytes, ground: Ground) -> Vec<OsString> {
    let keep_allocation = ground.keep_allocation;
    let uuid = uuid.to_string();
    let words: Vec<String> = match filesystem {
        // The kernel zeroes inode tables later. What an earlier journal left in the place of this
        // one could be replayed after a crash, so only a device that is zero there keeps it.
        Filesystem::Ext3 | Filesystem::Ext4 => {
            let discard = if keep_allocation {
                "nodiscard"
            } else {
                "discard"
            };
            let is_zero = u8::from(ground.proof == Proof::Whole);
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

/// As mke2fs chooses, but two groups at least: the second one begins with a copy of the superblock, by which a torn one
/// is told from a damaged one.
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
            let ground = Ground {
                keep_allocation: true,
                proof,
            };
            let words = arguments(Filesystem::Ext3, uuid, Bytes(1 << 30), ground);
            let ending = format!("lazy_journal_init{lazy}");
            let is_told = |word: &OsString| word.to_string_lossy().ends_with(&ending);
            assert!(words.iter().any(is_told), "{proof:?}: {words:?}");
        }
    }

    #[test]
    fn a_preallocated_device_is_never_discarded() {
        let uuid = Uuid::from_bytes([7; 16]);
        for filesystem in Filesystem::ALL {
            let ground = Ground {
                keep_allocation: true,
                proof: Proof::Whole,
            };
            let words = arguments(filesystem, uuid, Bytes(1 << 30), ground);
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
