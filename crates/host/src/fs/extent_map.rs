//! Reads the extents of a file in batches.

use crate::sys::{btrfs_tree, fiemap};
use linux_raw_sys::ioctl::{FIEMAP_EXTENT_ENCODED, FIEMAP_EXTENT_LAST, FIEMAP_EXTENT_SHARED};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
};

/// Extents read by one call. XFS needs half a microsecond for each, and two for a shared one.
const BATCH: usize = 1024;

/// Part of a file that has blocks.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) is_shared: bool,
    /// The extent is compressed, so it may have fewer blocks than its length says.
    pub(super) is_encoded: bool,
}

impl Extent {
    pub(super) fn end(&self) -> u64 {
        self.start.saturating_add(self.length)
    }

    /// Whether the extent is overwritten in place.
    pub(super) fn is_own(&self) -> bool {
        !self.is_shared && !self.is_encoded
    }
}

impl From<fiemap::Extent> for Extent {
    fn from(found: fiemap::Extent) -> Self {
        Extent {
            start: found.start,
            length: found.length,
            is_shared: found.flags & FIEMAP_EXTENT_SHARED != 0,
            is_encoded: found.flags & FIEMAP_EXTENT_ENCODED != 0,
        }
    }
}

/// Reads the extents of a file.
pub(super) struct ExtentMap<'a> {
    file: &'a File,
    source: Source,
}

enum Source {
    Fiemap,
    /// For each piece of a file, FIEMAP on Btrfs determines whether the piece's disk extent is shared. Linux 6.1 walks
    /// all pieces of the extent for that, each time (fs/btrfs/backref.c, `find_parent_nodes`). So the pieces are read
    /// from the tree, and FIEMAP is asked once for each disk extent.
    Btrfs {
        inode: u64,
        shared: BTreeMap<u64, bool>,
    },
}

impl<'a> ExtentMap<'a> {
    pub(super) fn new(file: &'a File, is_btrfs: bool) -> io::Result<Self> {
        let source = match is_btrfs {
            true => Source::Btrfs {
                inode: file.metadata()?.ino(),
                shared: BTreeMap::new(),
            },
            false => Source::Fiemap,
        };
        Ok(ExtentMap { file, source })
    }

    /// Returns the first extents from `at` on and below `below`, and the offset at which to continue if there are more.
    pub(super) fn read(&mut self, at: u64, below: u64) -> io::Result<(Vec<Extent>, Option<u64>)> {
        let (inode, shared) = match &mut self.source {
            Source::Fiemap => return read_fiemap(self.file, at, below),
            Source::Btrfs { inode, shared } => (*inode, shared),
        };
        let (found, next) = btrfs_tree::file_extents(self.file.as_fd(), inode, at)?;
        let mut extents = Vec::with_capacity(found.len());
        for piece in found {
            let is_shared = match piece.disk {
                None => false,
                Some(disk) => match shared.entry(disk) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(unknown) => {
                        // An extent that has disappeared meanwhile counts as shared.
                        let found = extent_at(self.file, piece.start)?;
                        *unknown.insert(found.is_none_or(|found| found.is_shared))
                    }
                },
            };
            extents.push(Extent {
                start: piece.start,
                length: piece.length,
                is_shared,
                is_encoded: piece.is_encoded,
            });
        }
        Ok((extents, next.filter(|next| *next < below)))
    }
}

fn read_fiemap(file: &File, at: u64, below: u64) -> io::Result<(Vec<Extent>, Option<u64>)> {
    let found = fiemap::extents::<BATCH>(file.as_fd(), at, below.saturating_sub(at))?;
    let next = found.last().and_then(|last| {
        let end = last.start.saturating_add(last.length);
        let is_last = last.flags & FIEMAP_EXTENT_LAST != 0;
        (!is_last && end > at && end < below).then_some(end)
    });
    Ok((found.into_iter().map(Extent::from).collect(), next))
}

/// Returns the extent that contains the offset `at`.
pub(super) fn extent_at(file: &File, at: u64) -> io::Result<Option<Extent>> {
    let found = fiemap::extents::<1>(file.as_fd(), at, 1)?;
    let found = found.first().copied().map(Extent::from);
    Ok(found.filter(|extent| (extent.start..extent.end()).contains(&at)))
}
