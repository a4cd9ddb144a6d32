//! The extents of a file, read one batch after the other.

use crate::sys::{btrfs_tree, fiemap};
use linux_raw_sys::ioctl::{FIEMAP_EXTENT_ENCODED, FIEMAP_EXTENT_LAST, FIEMAP_EXTENT_SHARED};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
};

/// How many extents one call reads; XFS needs half a microsecond for each, and two where it is shared.
const BATCH: usize = 1024;

/// A part of a file that has blocks.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) is_shared: bool,
    /// It may have less than it says: it is compressed.
    pub(super) is_encoded: bool,
}

impl Extent {
    pub(super) fn end(&self) -> u64 {
        self.start.saturating_add(self.length)
    }

    /// Whether it is written in place.
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
    /// FIEMAP on Btrfs asks for each piece whether the extent of the disk that it is in is shared, and to know that
    /// Linux 6.1 looks at all pieces of it, each time (fs/btrfs/backref.c, `find_parent_nodes`). So the tree tells
    /// the pieces, and FIEMAP of one of them whether all of them are shared.
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

    /// The first extents of a part, and where to go on behind them, if there are more.
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
                        // One that has gone meanwhile is not known to be the file's own.
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

/// The extent that a place is in.
pub(super) fn extent_at(file: &File, at: u64) -> io::Result<Option<Extent>> {
    let found = fiemap::extents::<1>(file.as_fd(), at, 1)?;
    let found = found.first().copied().map(Extent::from);
    Ok(found.filter(|extent| (extent.start..extent.end()).contains(&at)))
}
