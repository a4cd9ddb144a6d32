//! Determines what a device holds. A device that cannot be read is never called blank.
//!
//! # Which cache is read
//! A block device has a page cache of its own, above that of a loop device's image. A reader of the device's cache may
//! see data from before the image was changed behind the loop device. A reader of the image may miss pages that are
//! still dirty in the device's cache. The device is therefore read with `O_DIRECT`: the kernel first writes back dirty
//! pages of the range (`kiocb_write_and_wait` in `mm/filemap.c`) and then asks the loop driver, which reads through the
//! image's page cache, which all users of the image share. Before the image is asked which ranges hold data, the device
//! is synced, so that no dirty page waits above.

mod direct;
mod signatures;
mod zeros;

use crate::{
    block::device::Device,
    superblock::{self, Demand, Found, HEAD, Superblock},
};
use direct::{ALIGNMENT, Buffer, Direct};
use flexvol_sdk::{Bytes, Error, Result};
use signatures::{SIGNATURES, Window};
use std::os::unix::fs::FileExt;
use zeros::{all_zero, all_zero_from, is_zero};

/// Content of a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// No data found; the function that returns it says how much was read.
    Blank,
    /// One file system of a kind that volumes may hold, with its superblock.
    Formatted(Superblock),
    /// Anything else; the text names it. Unfinished file systems (`half-made xfs`, `half-made btrfs`) and data without
    /// a known signature ([`UNKNOWN`]) count as foreign too.
    Foreign(&'static str),
    /// A read failed, the device has size zero, or it changed while it was read: nothing is known.
    Unreadable,
}

/// Text of [`Content::Foreign`] for bytes that are not zero and have no signature.
pub const UNKNOWN: &str = "data of unknown kind";

/// Bytes of a device held in memory at once; the tail of this size contains every signature at the end.
const BUFFER: usize = 512 << 10;
/// Bytes of the head that a thorough probe reads at once: through the first ZFS label.
const LONG_HEAD: usize = 256 << 10;
/// Offsets of isolated signatures between head and tail (VMFS).
const FAR_PLACES: [u64; 2] = [1 << 20, 2 << 20];

/// The part of a device that must read as zero before the device counts as blank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Every byte that could hold data. For a loop device these are the data extents of its image (`SEEK_DATA`; the
    /// file system that holds the image returns zeros for all others), otherwise the whole device.
    Whole,
    /// The first and the last 4 MiB, where every file system, label and partition table begins. For devices whose ends
    /// were zeroed at creation ([`wipe_ends`]) and whose middle may hold data of earlier users.
    Ends,
}

/// Bytes that [`Proof::Ends`] covers at either end.
const END: u64 = 4 << 20;

/// Probes the first 68 KiB: enough for a volume that is marked as formatted.
///
/// [`Content::Blank`] means only that these bytes are zero. It proves nothing about the rest and never permits
/// formatting.
#[must_use]
pub fn quick(device: &Device) -> Content {
    or_unreadable(device, quickly)
}

/// Probes everything that could hold data: [`Proof::Whole`].
#[must_use]
pub fn thorough(device: &Device) -> Content {
    prove(device, Proof::Whole)
}

/// Probes everything that `proof` covers.
///
/// [`Content::Blank`] is a proof: every covered byte was read as zero. The caller holds the volume's lock, which keeps
/// the device from changing between this call and `mkfs`.
#[must_use]
pub fn prove(device: &Device, proof: Proof) -> Content {
    or_unreadable(device, |device| thoroughly(device, proof))
}

/// Whether every byte behind a file system that ends at `end` is zero, so that the file system can grow without
/// overwriting data. The caller keeps the device from changing.
///
/// # Errors
/// When any of these bytes cannot be read.
pub fn is_blank_behind(device: &Device, end: Bytes) -> Result<bool> {
    device.sync()?;
    let direct = Direct::new(device)?;
    let is_blank = all_zero_from(device, end.0, &direct, &mut Buffer::new(BUFFER))?;
    direct.unchanged()?;
    Ok(is_blank)
}

/// Reads what the superblock demands of every mount.
///
/// # Errors
/// When the superblock cannot be read.
pub fn demand(device: &Device) -> Result<Option<Demand>> {
    let direct = Direct::new(device)?;
    let mut buffer = Buffer::new(HEAD);
    let demand = superblock::demand(direct.read(&mut buffer, 0, HEAD)?);
    direct.unchanged()?;
    Ok(demand)
}

/// Zeroes both ends of a device durably, for [`Proof::Ends`].
///
/// # Errors
/// When the ends may not be zero afterwards.
pub fn wipe_ends(device: &Device) -> Result<()> {
    wipe(device, &ends(device.size()?.0))
}

/// Zeroes durably what [`Proof::Ends`] covers beyond the old size `from` of a device that has grown.
///
/// # Errors
/// When that may not be zero afterwards.
pub fn wipe_grown(device: &Device, from: Bytes) -> Result<()> {
    let parts = ends(device.size()?.0).map(|(begin, end)| (begin.max(from.0), end));
    wipe(device, &parts)
}

fn wipe(device: &Device, parts: &[(u64, u64)]) -> Result<()> {
    let failed = |error| Error::system("wipe the new volume", error);
    let writer = device.writer()?;
    let zeros = vec![0; BUFFER];
    for (from, to) in parts {
        let mut at = *from;
        while at < *to {
            let length = usize::try_from(to - at).map_or(BUFFER, |left| left.min(BUFFER));
            let written = writer.write_all_at(&zeros[..length], at);
            written.map_err(failed)?;
            at += length as u64;
        }
    }
    device.sync()
}

/// The ranges that [`Proof::Ends`] covers.
fn ends(size: u64) -> [(u64, u64); 2] {
    let head = END.min(size);
    [(0, head), (size.saturating_sub(END).max(head), size)]
}

fn or_unreadable(device: &Device, look: impl Fn(&Device) -> Result<Content>) -> Content {
    look(device).unwrap_or_else(|error| {
        log::warn!(
            "cannot probe device {}: {}",
            device.number(),
            error.report()
        );
        Content::Unreadable
    })
}

fn quickly(device: &Device) -> Result<Content> {
    let direct = Direct::new(device)?;
    // The superblocks of ext and XFS lie in the first block; whatever lies behind them does not matter.
    let mut first = Buffer::new(ALIGNMENT);
    let first = direct.read(&mut first, 0, ALIGNMENT)?;
    let content = match classify(direct.size, first, &[]) {
        Some(formatted @ Content::Formatted(_)) => formatted,
        _ => {
            let mut buffer = Buffer::new(HEAD);
            let head = direct.read(&mut buffer, 0, HEAD)?;
            classify(direct.size, head, &[]).unwrap_or_else(|| match is_zero(head) {
                true => Content::Blank,
                false => Content::Foreign(UNKNOWN),
            })
        }
    };
    direct.unchanged()?;
    Ok(content)
}

fn thoroughly(device: &Device, proof: Proof) -> Result<Content> {
    device.sync()?;
    let direct = Direct::new(device)?;

    let mut buffer = Buffer::new(BUFFER);
    let mut head = Buffer::new(LONG_HEAD);
    let head = direct.read(&mut head, 0, LONG_HEAD)?;
    let mut content = classify(direct.size, head, &[]);
    // A member of a RAID 1 looks like the mirrored file system until its last sectors are read.
    if matches!(content, None | Some(Content::Formatted(_))) {
        let tail_start = (direct.size.0 - direct.size.0 % ALIGNMENT as u64)
            .saturating_sub((BUFFER - ALIGNMENT) as u64);
        let tail = direct.read(&mut buffer, tail_start, BUFFER)?;
        let tail = Window {
            start: tail_start,
            bytes: tail,
        };
        content = classify(direct.size, head, &[tail]);
    }
    for start in FAR_PLACES {
        if content.is_none() && start < direct.size.0 {
            let bytes = direct.read(&mut buffer, start, ALIGNMENT)?;
            content = classify(direct.size, head, &[Window { start, bytes }]);
        }
    }
    let content = match content {
        Some(content) => content,
        None if is_zero(head) && holds_only_zeros(device, proof, &direct, &mut buffer)? => {
            Content::Blank
        }
        None => Content::Foreign(UNKNOWN),
    };
    direct.unchanged()?;
    Ok(content)
}

/// Classifies a device by the signatures in its head and in other windows; `None` where there is none. A file system
/// owns the device from its superblock on, so magic numbers behind the superblock do not count: a tenant may write any
/// bytes into a file. A signature before the superblock (ext's first KiB, Btrfs' first 64) or at the end of the device
/// leaves it in doubt what the device holds, so the device is foreign.
fn classify(size: Bytes, head: &[u8], others: &[Window<'_>]) -> Option<Content> {
    let found = [
        (0, superblock::xfs(head)),
        (1024, superblock::ext(head)),
        (0x10000, superblock::btrfs(head)),
    ]
    .into_iter()
    .find_map(|(place, found)| match found {
        Found::Nothing => None,
        Found::Other(kind) => Some((place, Content::Foreign(kind))),
        Found::Whole(superblock) => Some((place, Content::Formatted(superblock))),
    });
    let owned_from = found.as_ref().map_or(u64::MAX, |(place, _)| *place);
    let head = Window {
        start: 0,
        bytes: head,
    };
    SIGNATURES
        .iter()
        .find(|signature| {
            signature.find(head, size, owned_from).is_some()
                || others
                    .iter()
                    .any(|window| signature.find(*window, size, u64::MAX).is_some())
        })
        .map(|signature| Content::Foreign(signature.kind))
        .or(found.map(|(_, content)| content))
}

/// [`classify`] with one other window.
#[cfg(fuzzing)]
pub(crate) fn classify_with(size: Bytes, head: &[u8], start: u64, bytes: &[u8]) -> Option<Content> {
    classify(size, head, &[Window { start, bytes }])
}

fn holds_only_zeros(
    device: &Device,
    proof: Proof,
    direct: &Direct<'_>,
    buffer: &mut Buffer,
) -> Result<bool> {
    if proof == Proof::Ends {
        for (from, to) in ends(direct.size.0) {
            let read = |at, length| Ok(is_zero(direct.read(buffer, at, length)?));
            if !all_zero(from, to, read)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    all_zero_from(device, 0, direct, buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minimal_xfs() -> Vec<u8> {
        let mut head = vec![0; HEAD];
        head[..4].copy_from_slice(b"XFSB");
        head[4..8].copy_from_slice(&4096u32.to_be_bytes());
        head[8..16].copy_from_slice(&1000u64.to_be_bytes());
        head[84..88].copy_from_slice(&1000u32.to_be_bytes());
        head[88..92].copy_from_slice(&1u32.to_be_bytes());
        head
    }

    #[test]
    fn what_a_tenant_writes_behind_the_superblock_does_not_matter() {
        let mut head = minimal_xfs();
        head[0x8001..0x8006].copy_from_slice(b"CD001");
        head[0x10040..0x10048].copy_from_slice(b"_BHRfS_M");
        let content = classify(Bytes(4_096_000), &head, &[]);
        assert!(
            matches!(content, Some(Content::Formatted(_))),
            "{content:?}"
        );
    }

    #[test]
    fn a_signature_before_the_superblock_or_at_the_end_makes_it_foreign() {
        let size = Bytes(4_096_000);
        let mut ext = vec![0; HEAD];
        ext[1024 + 0x38..][..2].copy_from_slice(&[0x53, 0xef]);
        ext[510..512].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(
            classify(size, &ext, &[]),
            Some(Content::Foreign("partition table or boot sector"))
        );
        let mut sector = [0; 512];
        sector[..8].copy_from_slice(b"EFI PART");
        let tail = Window {
            start: size.0 - 512,
            bytes: &sector,
        };
        assert_eq!(
            classify(size, &minimal_xfs(), &[tail]),
            Some(Content::Foreign("gpt partition table"))
        );
    }
}
