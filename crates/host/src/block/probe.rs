//! What a device holds. A device that cannot be read is never called blank.
//!
//! # Whose bytes are read
//! A block device has a page cache of its own, above the one of a loop device's image. Whoever
//! reads the device through it may see bytes from before the image was changed behind the loop
//! device; whoever reads the image may miss what is still dirty in the device's cache. So the
//! device is read with `O_DIRECT`, for which the kernel first writes back dirty pages of that
//! range (`kiocb_write_and_wait` in `mm/filemap.c`) and then asks the loop driver, which reads the
//! image through the image's cache, the one all its users share. And before the image is asked
//! which ranges hold data, the device is synced, so that nothing waits above.

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

/// What is on a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// Nothing; what that means is said by the function that found it.
    Blank,
    /// One file system of a kind that volumes may hold, by its superblock.
    Formatted(Superblock),
    /// Something else; the text names it. A file system that was not made to its end is here too
    /// (`half-made xfs`, `half-made btrfs`), as is data that no signature explains ([`UNKNOWN`]).
    Foreign(&'static str),
    /// A read failed, the device is empty, or it changed meanwhile: nothing is known.
    Unreadable,
}

/// [`Content::Foreign`]'s text for bytes that are not zero and have no signature.
pub const UNKNOWN: &str = "data of unknown kind";

/// The largest part of a device in memory at once; it holds every signature of the tail.
const BUFFER: usize = 512 << 10;
/// How much of the head a thorough look reads at once: through ZFS' first label.
const LONG_HEAD: usize = 256 << 10;
/// Places of single signatures between head and tail (VMFS).
const FAR_PLACES: [u64; 2] = [1 << 20, 2 << 20];

/// What must be read as zero before a device counts as blank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Every byte that could hold data. For a loop device these are the data extents of its image
    /// (`SEEK_DATA`; the file system that holds the image answers zeros for all others),
    /// elsewhere it is the whole device.
    Whole,
    /// The first and the last 4 MiB, where every file system, label and partition table begins.
    /// For devices whose ends were zeroed when they were made ([`wipe_ends`]), and whose middle
    /// may hold what others left there.
    Ends,
}

/// How much [`Proof::Ends`] is about, at either end.
const END: u64 = 4 << 20;

/// Looks at the first 68 KiB: enough for a volume that is marked as formatted.
///
/// [`Content::Blank`] means no more than that these bytes are zero. It proves nothing about the
/// rest and never permits formatting.
#[must_use]
pub fn quick(device: &Device) -> Content {
    or_unreadable(device, quickly)
}

/// Looks at everything that could hold data: [`Proof::Whole`].
#[must_use]
pub fn thorough(device: &Device) -> Content {
    prove(device, Proof::Whole)
}

/// Looks at everything that `proof` is about.
///
/// [`Content::Blank`] is a proof: every byte of it was read as zero. The caller keeps the device
/// from changing between this and `mkfs`, by the volume's lock.
#[must_use]
pub fn prove(device: &Device, proof: Proof) -> Content {
    or_unreadable(device, |device| thoroughly(device, proof))
}

/// Whether every byte behind a file system that ends at `end` was read as zero, so that it can grow
/// without writing over anything. The caller keeps the device from changing.
///
/// # Errors
/// When not all of it can be read.
pub fn is_blank_behind(device: &Device, end: Bytes) -> Result<bool> {
    device.sync()?;
    let direct = Direct::new(device)?;
    let is_blank = all_zero_from(device, end.0, &direct, &mut Buffer::new(BUFFER))?;
    direct.unchanged()?;
    Ok(is_blank)
}

/// What the superblock asks of whoever mounts it.
///
/// # Errors
/// When it cannot be read.
pub fn demand(device: &Device) -> Result<Option<Demand>> {
    let direct = Direct::new(device)?;
    let mut buffer = Buffer::new(HEAD);
    let demand = superblock::demand(direct.read(&mut buffer, 0, HEAD)?);
    direct.unchanged()?;
    Ok(demand)
}

/// Zeroes both ends of a device, durably, for [`Proof::Ends`].
///
/// # Errors
/// When they may not be zero.
pub fn wipe_ends(device: &Device) -> Result<()> {
    wipe(device, &ends(device.size()?.0))
}

/// Zeroes what is [`Proof::Ends`]' of a device that has grown from this size, durably.
///
/// # Errors
/// When it may not be zero.
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

/// Which bytes [`Proof::Ends`] is about.
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
    // The superblocks of ext and XFS stand in the first block, and nothing behind them counts.
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
    // A mirror's member looks like what it mirrors until its last sectors are seen.
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

/// What the signatures in the head and in other parts say; `None` where there is none.
///
/// A file system owns the device from its superblock on, so a magic number behind it is nobody's
/// business but its own (a tenant may write any bytes into a file). Before its superblock (ext's
/// first KiB, Btrfs' first 64) and at the end of the device another one makes it doubtful whose
/// the device is, and that is not ours.
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

/// [`classify`] with one other part.
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
