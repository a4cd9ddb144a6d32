//! Searches the trees of Btrfs (linux/btrfs.h, linux/btrfs_tree.h).
#![allow(unsafe_code)]

use linux_raw_sys::{
    btrfs::{
        BTRFS_EXTENT_DATA_KEY, BTRFS_FILE_EXTENT_INLINE, btrfs_ioctl_search_args,
        btrfs_ioctl_search_key,
    },
    ioctl::BTRFS_IOC_TREE_SEARCH,
};
use rustix::{
    fd::BorrowedFd,
    io::{self, Errno},
    ioctl,
};
use std::ops::RangeInclusive;

/// Selects items of one object.
pub(super) struct Part {
    /// Id of the tree; zero is the tree of the subvolume that the file lies in.
    pub(super) tree: u64,
    pub(super) object: u64,
    pub(super) kind: u32,
    pub(super) offsets: RangeInclusive<u64>,
}

pub(super) struct Item {
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}

/// Returns the first of the selected items, as many as fit into the ioctl's buffer.
pub(super) fn search(file: BorrowedFd<'_>, part: Part) -> io::Result<Vec<Item>> {
    let mut arguments = btrfs_ioctl_search_args {
        key: btrfs_ioctl_search_key {
            tree_id: part.tree,
            min_objectid: part.object,
            max_objectid: part.object,
            min_offset: *part.offsets.start(),
            max_offset: *part.offsets.end(),
            min_transid: 0,
            max_transid: u64::MAX,
            min_type: part.kind,
            max_type: part.kind,
            nr_items: u32::MAX,
            unused: 0,
            unused1: 0,
            unused2: 0,
            unused3: 0,
            unused4: 0,
        },
        buf: [0; 3992],
    };
    // SAFETY: BTRFS_IOC_TREE_SEARCH reads and writes one `btrfs_ioctl_search_args`, for which
    // every bit pattern is a value.
    unsafe {
        ioctl::ioctl(
            file,
            ioctl::Updater::<BTRFS_IOC_TREE_SEARCH, _>::new(&mut arguments),
        )?;
    }
    // SAFETY: signed and unsigned bytes have the same layout, and every bit pattern is a value of both.
    let mut rest = unsafe { &*(&raw const arguments.buf).cast::<[u8; 3992]>() }.as_slice();
    let mut items = Vec::new();
    for _ in 0..arguments.key.nr_items {
        // transid, objectid and offset of 64 bits each, type and length of 32, and the item.
        let (header, behind) = rest.split_at_checked(32).ok_or(Errno::IO)?;
        let offset = header[16..24].try_into().map_err(|_| Errno::IO)?;
        let length = header[28..].try_into().map_err(|_| Errno::IO)?;
        let length = usize::try_from(u32::from_ne_bytes(length)).map_err(|_| Errno::IO)?;
        let (item, behind) = behind.split_at_checked(length).ok_or(Errno::IO)?;
        items.push(Item {
            offset: u64::from_ne_bytes(offset),
            bytes: item.to_vec(),
        });
        rest = behind;
    }
    Ok(items)
}

/// Reads a little-endian word of 64 bits.
pub(super) fn word(item: &[u8], at: usize) -> Option<u64> {
    let word = item.get(at..at + 8)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}

/// Part of a file that has blocks.
pub(crate) struct FileExtent {
    pub(crate) start: u64,
    pub(crate) length: u64,
    /// Disk address of the extent that holds it, which identifies the extent; `None` for data inline in the tree.
    pub(crate) disk: Option<u64>,
    pub(crate) is_encoded: bool,
}

/// Returns some of the file's extents from offset `from` on, without holes, and the offset at which to continue unless
/// the end was reached. An extent that begins before `from` is left out.
pub(crate) fn file_extents(
    file: BorrowedFd<'_>,
    inode: u64,
    from: u64,
) -> io::Result<(Vec<FileExtent>, Option<u64>)> {
    let part = Part {
        tree: 0,
        object: inode,
        kind: BTRFS_EXTENT_DATA_KEY,
        offsets: from..=u64::MAX,
    };
    let items = search(file, part)?;
    let next = items.last().map(|last| last.offset + 1);
    let extents = items.into_iter().filter_map(|item| extent(&item));
    Ok((extents.collect(), next))
}

/// Parses `struct btrfs_file_extent_item`: generation and size in memory, three kinds of encoding, whether the data is
/// inline in the tree; then address and length of the disk extent, and the part of it that belongs to the file.
fn extent(item: &Item) -> Option<FileExtent> {
    let bytes = &item.bytes;
    let is_encoded = bytes.get(16..20)? != [0; 4];
    let is_inline = u32::from(*bytes.get(20)?) == BTRFS_FILE_EXTENT_INLINE as u32;
    let (length, disk) = match is_inline {
        true => (word(bytes, 8)?, None),
        false => (word(bytes, 45)?, Some(word(bytes, 21)?)),
    };
    (disk != Some(0)).then_some(FileExtent {
        start: item.offset,
        length,
        disk,
        is_encoded,
    })
}

const _: () = assert!(size_of::<btrfs_ioctl_search_args>() == 4096);
