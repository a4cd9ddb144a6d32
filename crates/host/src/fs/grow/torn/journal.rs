//! Whether an ext4 superblock tells of its journal what is there: where it does not say that there is something to
//! replay, the kernel wipes the journal (fs/ext4/super.c, `ext4_load_journal`).

use super::{COMPATIBLE, INCOMPATIBLE, RECOVER};
use crate::superblock::{be32, le16, le32};
use std::{fs::File, io, os::unix::fs::FileExt};

const HAS_JOURNAL: u32 = 0x4;

/// `s_jnl_blocks`: a copy of the map of the journal's inode.
const MAP: usize = 0x10c;

/// What extents begin with (`EXT4_EXT_MAGIC`, fs/ext4/ext4_extents.h), and the journal
/// (`JBD2_MAGIC_NUMBER`, include/linux/jbd2.h).
const EXTENTS: u16 = 0xf30a;
const JOURNAL: u32 = 0xc03b_3998;

/// Whether the superblock says that the journal is to be replayed, or there is nothing in it; false where that
/// cannot be told.
pub(super) fn is_told(file: &File, superblock: &[u8; 1024]) -> io::Result<bool> {
    let has = |at, feature| le32(superblock, at).is_some_and(|features| features & feature != 0);
    if has(INCOMPATIBLE, RECOVER) || !has(COMPATIBLE, HAS_JOURNAL) {
        return Ok(true);
    }
    let Some(at) = first_byte(superblock) else {
        return Ok(false);
    };
    let mut journal = [0; 32];
    match file.read_exact_at(&mut journal, at) {
        Ok(()) => {}
        // Beyond its end there is none.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        Err(error) => return Err(error),
    }
    // `s_start` is zero of one that is empty.
    Ok(be32(&journal, 0) == Some(JOURNAL) && be32(&journal, 0x1c) == Some(0))
}

/// Where the journal begins.
fn first_byte(superblock: &[u8; 1024]) -> Option<u64> {
    let map = &superblock[MAP..];
    let block = match le16(map, 0)? {
        EXTENTS => {
            // One level, and the first extent begins with the first block: else the journal's begins elsewhere.
            let is_flat = le16(map, 2)? > 0 && le16(map, 6)? == 0 && le32(map, 12)? == 0;
            is_flat.then_some(u64::from(le16(map, 18)?) << 32 | u64::from(le32(map, 20)?))?
        }
        _ => u64::from(le32(map, 0)?),
    };
    let size = 1024u64.checked_shl(le32(superblock, 0x18)?)?;
    block.checked_mul(size).filter(|at| *at > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a journal in the fifth block of 4 KiB, mapped by extents or as ext3 does.
    fn superblock(extents: bool) -> [u8; 1024] {
        let mut superblock = [0; 1024];
        let mut set =
            |at: usize, bytes: &[u8]| superblock[at..at + bytes.len()].copy_from_slice(bytes);
        set(0x18, &2u32.to_le_bytes());
        set(COMPATIBLE, &HAS_JOURNAL.to_le_bytes());
        match extents {
            true => {
                set(MAP, &EXTENTS.to_le_bytes());
                set(MAP + 2, &1u16.to_le_bytes());
                set(MAP + 20, &5u32.to_le_bytes());
            }
            false => set(MAP, &5u32.to_le_bytes()),
        }
        superblock
    }

    fn journal(start: u32) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&JOURNAL.to_be_bytes(), 5 * 4096).unwrap();
        file.write_all_at(&start.to_be_bytes(), 5 * 4096 + 0x1c)
            .unwrap();
        file
    }

    #[test]
    fn a_journal_with_something_in_it_must_be_told_of() {
        for extents in [false, true] {
            let mut superblock = superblock(extents);
            let told =
                |superblock: &[u8; 1024], start| is_told(&journal(start), superblock).unwrap();
            assert!(told(&superblock, 0));
            assert!(!told(&superblock, 7));
            superblock[INCOMPATIBLE] = 4;
            assert!(told(&superblock, 7));
        }
    }

    #[test]
    fn where_no_journal_is_found_nothing_is_known() {
        let file = tempfile::tempfile().unwrap();
        assert!(!is_told(&file, &superblock(true)).unwrap());
        let mut deep = superblock(true);
        deep[MAP + 6] = 1;
        assert!(!is_told(&journal(0), &deep).unwrap());
        let mut none = superblock(true);
        none[COMPATIBLE] = 0;
        assert!(is_told(&file, &none).unwrap());
    }
}
