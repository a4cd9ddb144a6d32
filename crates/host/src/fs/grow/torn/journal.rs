//! Reads the journal of an ext4 with a torn superblock as the kernel does for a replay.

mod log;

use super::{COMPATIBLE, is_to_be_replayed};
use crate::superblock::{be32, le16, le32};
use std::{fs::File, io, os::unix::fs::FileExt};

const HAS_JOURNAL: u32 = 0x4;

/// `s_jnl_blocks`: a copy of the map of the journal's inode, `i_block`.
const MAP: usize = 0x10c;
const MAP_LENGTH: usize = 60;

/// Direct blocks in the block map of an ext3 inode (`EXT4_NDIR_BLOCKS`).
const DIRECT: u32 = 12;

/// Magic number of an extent tree node (`EXT4_EXT_MAGIC`, fs/ext4/ext4_extents.h), and the tree's largest depth
/// (`EXT4_MAX_EXTENT_DEPTH`).
const EXTENTS: u16 = 0xf30a;
const MOST_DEPTH: u16 = 5;

/// Length of a node's header, and of each of its entries.
const ENTRY: usize = 12;

/// Magic number of journal blocks that are not data (`JBD2_MAGIC_NUMBER`, include/linux/jbd2.h).
const MAGIC: u32 = 0xc03b_3998;

/// `s_start` in the journal's superblock: zero if the journal is empty.
const START: usize = 0x1c;

/// Journal inside a file system.
pub(super) struct Journal<'a> {
    file: &'a File,
    superblock: &'a [u8; 1024],
    block: u64,
}

impl<'a> Journal<'a> {
    /// Locates the journal. `None` where there is no journal, or the block size is invalid.
    pub(super) fn new(file: &'a File, superblock: &'a [u8; 1024]) -> Option<Self> {
        let has_one = le32(superblock, COMPATIBLE)? & HAS_JOURNAL != 0;
        let block = le32(superblock, 0x18).filter(|exponent| has_one && *exponent <= 6)?;
        Some(Journal {
            file,
            superblock,
            block: 1024 << block,
        })
    }

    /// Whether the superblock says that the journal must be replayed, or the journal is empty. False where that cannot
    /// be determined. Without the flag, the kernel wipes the journal (`ext4_load_journal`, fs/ext4/super.c).
    pub(super) fn state_matches_superblock(&self) -> io::Result<bool> {
        if is_to_be_replayed(self.superblock) {
            return Ok(true);
        }
        let first = self.block(0)?;
        Ok(first
            .is_some_and(|first| be32(&first, 0) == Some(MAGIC) && be32(&first, START) == Some(0)))
    }

    /// Reads a block of the journal; `None` where it has no block with this number.
    fn block(&self, number: u32) -> io::Result<Option<Vec<u8>>> {
        match self.place(number)? {
            Some(block) => self.read(block),
            None => Ok(None),
        }
    }

    /// Returns the file system block that holds a block of the journal.
    fn place(&self, number: u32) -> io::Result<Option<u64>> {
        let mut node = self.superblock[MAP..MAP + MAP_LENGTH].to_vec();
        if le16(&node, 0) != Some(EXTENTS) {
            let at = usize::try_from(number.min(DIRECT)).unwrap_or(usize::MAX) * 4;
            let block = le32(&node, at).filter(|block| number < DIRECT && *block > 0);
            return Ok(block.map(u64::from));
        }
        let mut above = MOST_DEPTH + 1;
        loop {
            let Some((depth, entry)) =
                last_entry(&node, number).filter(|(depth, _)| *depth < above)
            else {
                return Ok(None);
            };
            if depth == 0 {
                return Ok(in_extent(entry, number));
            }
            // Each level must be less deep than the one above, so the loop ends.
            above = depth;
            let Some(below) = address(entry, 4, 8) else {
                return Ok(None);
            };
            match self.read(below)? {
                Some(read) => node = read,
                None => return Ok(None),
            }
        }
    }

    /// Reads a block of the file system; `None` beyond its end.
    fn read(&self, block: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(at) = block.checked_mul(self.block).filter(|at| *at > 0) else {
            return Ok(None);
        };
        let mut bytes = vec![0; usize::try_from(self.block).map_err(io::Error::other)?];
        match self.file.read_exact_at(&mut bytes, at) {
            Ok(()) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns the depth of an extent tree node, and its last entry that begins at block `number` or before.
fn last_entry(node: &[u8], number: u32) -> Option<(u16, &[u8])> {
    let depth = le16(node, 6).filter(|_| le16(node, 0) == Some(EXTENTS))?;
    let entries = node.get(ENTRY..)?.chunks_exact(ENTRY);
    let mut entries = entries.take(le16(node, 2)?.into());
    let entry = entries.rfind(|entry| le32(entry, 0).is_some_and(|first| first <= number))?;
    Some((depth, entry))
}

/// Returns the place of a file's block, if this extent holds it.
fn in_extent(extent: &[u8], number: u32) -> Option<u64> {
    let within = number.checked_sub(le32(extent, 0)?)?;
    let has_it = within < u32::from(le16(extent, 4)?);
    has_it.then_some(address(extent, 8, 6)? + u64::from(within))
}

/// Reads a 48-bit block number.
fn address(entry: &[u8], low: usize, high: usize) -> Option<u64> {
    Some(u64::from(le16(entry, high)?) << 32 | u64::from(le32(entry, low)?))
}

#[cfg(test)]
mod tests {
    use super::super::INCOMPATIBLE;
    use super::*;

    /// Superblock with a journal in block 5 of 4 KiB, mapped by extents or as ext3 does.
    pub(super) fn superblock(extents: bool) -> [u8; 1024] {
        let mut superblock = [0; 1024];
        let mut set =
            |at: usize, bytes: &[u8]| superblock[at..at + bytes.len()].copy_from_slice(bytes);
        set(0x18, &2u32.to_le_bytes());
        set(COMPATIBLE, &HAS_JOURNAL.to_le_bytes());
        match extents {
            true => {
                set(MAP, &EXTENTS.to_le_bytes());
                set(MAP + 2, &1u16.to_le_bytes());
                set(MAP + 16, &32u16.to_le_bytes());
                set(MAP + 20, &5u32.to_le_bytes());
            }
            false => set(MAP, &5u32.to_le_bytes()),
        }
        superblock
    }

    fn file(start: u32) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&MAGIC.to_be_bytes(), 5 * 4096).unwrap();
        file.write_all_at(&start.to_be_bytes(), 5 * 4096 + 0x1c)
            .unwrap();
        file
    }

    fn state_matches_superblock(file: &File, superblock: &[u8; 1024]) -> bool {
        let journal = Journal::new(file, superblock).unwrap();
        journal.state_matches_superblock().unwrap()
    }

    #[test]
    fn a_journal_with_something_in_it_must_be_told_of() {
        for extents in [false, true] {
            let mut superblock = superblock(extents);
            assert!(state_matches_superblock(&file(0), &superblock));
            assert!(!state_matches_superblock(&file(7), &superblock));
            superblock[INCOMPATIBLE] = 4;
            assert!(state_matches_superblock(&file(7), &superblock));
        }
    }

    #[test]
    fn where_no_journal_is_found_nothing_is_known() {
        let empty = tempfile::tempfile().unwrap();
        assert!(!state_matches_superblock(&empty, &superblock(true)));
        let mut deep = superblock(true);
        deep[MAP + 6] = 1;
        assert!(!state_matches_superblock(&file(0), &deep));
        let mut none = superblock(true);
        none[COMPATIBLE] = 0;
        assert!(Journal::new(&empty, &none).is_none());
    }

    #[test]
    fn a_block_is_found_through_what_lies_between() {
        let file = file(0);
        let mut above = superblock(true);
        let node = above[MAP..MAP + MAP_LENGTH].to_vec();
        let of = |superblock: &[u8; 1024], number| {
            let journal = Journal::new(&file, superblock).unwrap();
            journal.place(number).unwrap()
        };
        assert_eq!(
            [0, 31, 32].map(|number| of(&above, number)),
            [Some(5), Some(36), None]
        );
        // The same tree, one level deeper.
        file.write_all_at(&node, 9 * 4096).unwrap();
        above[MAP + 6] = 1;
        above[MAP + 12..MAP + 24].copy_from_slice(&[0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            [0, 31, 32].map(|number| of(&above, number)),
            [Some(5), Some(36), None]
        );
        // A node that leads to itself.
        file.write_all_at(&above[MAP..MAP + MAP_LENGTH], 9 * 4096)
            .unwrap();
        assert_eq!(of(&above, 0), None);
    }
}
