//! Group descriptors that a power cut during an online growth left behind the superblock.
//!
//! The kernel writes both back from the journal in any order, and checks the descriptors before it replays the journal
//! (`ext4_check_descriptors`, fs/ext4/super.c). A superblock that already has the new groups beside descriptors that do
//! not is refused for ever, although the replay would write them.

use super::{
    INCOMPATIBLE, claimed, constant_fields_match, crc32c, crc32c_after, expected, has_grown_as_far,
    is_to_be_replayed, is_whole, journal::Journal, superblock_and_copy,
};
use crate::{
    block::device::Device,
    superblock::{Superblock, le16, le32},
};
use flexvol_sdk::{Error, Result};
use std::{fs::File, io, ops::Range, os::unix::fs::FileExt};

const META_BG: u32 = 0x10;
const FLEX_BG: u32 = 0x200;
const HAS_64_BIT: u32 = 0x80;
const CHECKSUM_SEED: u32 = 0x2000;

/// `bg_checksum` in a descriptor.
const CHECKSUM: usize = 0x1e;

/// `bg_block_bitmap`, `bg_inode_bitmap` and `bg_inode_table` in a descriptor: the lower and the upper halves.
const BLOCKS: [(usize, usize); 3] = [(0x0, 0x20), (0x4, 0x24), (0x8, 0x28)];

/// More blocks of descriptors than any file system has that this driver makes: they describe 512 TiB.
const MOST_BLOCKS: u64 = 1 << 16;

/// Writes the blocks in which descriptors of new groups are missing as the last committed transaction of the journal has
/// them, which is what a replay does. Returns false if none is missing, if one is damaged, or if the journal does not
/// have a block.
///
/// # Errors
/// As for [`write_checksum`](super::write_checksum).
pub(in super::super) fn write_descriptors(
    device: &Device,
    found: &Superblock,
    copy: u64,
) -> Result<bool> {
    let corrected = claimed(device, found, copy, correct)?;
    corrected.map_err(|error| Error::system("write the file system's group descriptors", error))
}

fn correct(file: &File, copy: u64) -> io::Result<bool> {
    let (superblock, other) = superblock_and_copy(file, copy)?;
    // Without checksums a torn superblock looks like a whole one, for the kernel, too.
    let is_trusted = (is_whole(&superblock) || expected(&superblock).is_none())
        && constant_fields_match(&superblock, &other)
        && has_grown_as_far(&superblock, &other);
    let (Some(table), Some(journal)) = (Table::of(&superblock), Journal::new(file, &superblock))
    else {
        return Ok(false);
    };
    if !is_to_be_replayed(&superblock) || !is_trusted {
        return Ok(false);
    }
    let mut right = Vec::new();
    for number in 0..table.blocks() {
        let at = (table.first + number) * table.block;
        let mut block = vec![0; usize::try_from(table.block).map_err(io::Error::other)?];
        file.read_exact_at(&mut block, at)?;
        if table.is_right(number, &block) {
            continue;
        }
        if !table.is_right_or_unwritten(number, &block) {
            return Ok(false);
        }
        match journal.last(table.first + number)? {
            Some(block) if table.is_right(number, &block) => right.push((at, block)),
            _ => return Ok(false),
        }
    }
    for (at, block) in &right {
        file.write_all_at(block, *at)?;
    }
    file.sync_all()?;
    Ok(!right.is_empty())
}

/// The table of group descriptors behind the superblock.
struct Table {
    /// The size of a block.
    block: u64,
    /// Its first block.
    first: u64,
    groups: u64,
    /// The size of a descriptor.
    size: usize,
    /// What the checksum of a descriptor begins with; `None` where descriptors have none.
    seed: Option<u32>,
    /// Blocks of a group.
    per_group: u64,
    /// The first block of the file system that is in a group, and the one after its last.
    all: Range<u64>,
    /// Whether a group's bitmaps and inodes may be in another group.
    flexible: bool,
}

impl Table {
    /// `None` if the descriptors lie elsewhere, or are more than they may be.
    fn of(superblock: &[u8; 1024]) -> Option<Table> {
        let features = le32(superblock, INCOMPATIBLE)?;
        let has = |feature| features & feature != 0;
        let block = 1024 << le32(superblock, 0x18).filter(|exponent| *exponent <= 6)?;
        let first_data = u64::from(le32(superblock, 0x14)?);
        let high = match has(HAS_64_BIT) {
            true => u64::from(le32(superblock, 0x150)?) << 32,
            false => 0,
        };
        let blocks = (high | u64::from(le32(superblock, 0x4)?)).checked_sub(first_data)?;
        let per_group = u64::from(le32(superblock, 0x20)?);
        let size = match has(HAS_64_BIT) {
            true => usize::from(le16(superblock, 0xfe)?),
            false => 32,
        };
        let seed = match has(CHECKSUM_SEED) {
            true => le32(superblock, 0x270)?,
            false => crc32c(&superblock[0x68..0x78]),
        };
        let seed = expected(superblock).map(|_| seed);
        if has(META_BG) || per_group == 0 || !size.is_power_of_two() || !(32..=1024).contains(&size)
        {
            return None;
        }
        let table = Table {
            block,
            first: first_data + 1,
            groups: blocks.div_ceil(per_group),
            size,
            seed,
            per_group,
            all: first_data..first_data + blocks,
            flexible: has(FLEX_BG),
        };
        (table.blocks() <= MOST_BLOCKS).then_some(table)
    }

    fn in_block(&self) -> u64 {
        self.block / self.size as u64
    }

    fn blocks(&self) -> u64 {
        self.groups.div_ceil(self.in_block())
    }

    /// Whether each descriptor in a block of the table is whole.
    fn is_right(&self, number: u64, block: &[u8]) -> bool {
        let mut all = self.descriptors(number, block);
        all.all(|(group, descriptor)| self.is_whole(group, descriptor))
    }

    /// The same, of a block that may be of before its last groups were added. A descriptor that has other content and is
    /// not whole is damaged, and nobody knows what else is.
    fn is_right_or_unwritten(&self, number: u64, block: &[u8]) -> bool {
        let mut all = self.descriptors(number, block);
        all.all(|(group, descriptor)| {
            self.is_whole(group, descriptor) || self.is_unwritten(number, descriptor)
        })
    }

    /// Whether a descriptor was never written. In a block of descriptors that was in reserve there are not only zeros: it
    /// was one of the inode that reserves them, and names its copies in other groups (`reserve_backup_gdb`,
    /// fs/ext4/resize.c).
    fn is_unwritten(&self, number: u64, descriptor: &[u8]) -> bool {
        let own = self.first + number;
        let mut words = descriptor.chunks_exact(4).filter_map(|word| le32(word, 0));
        words.all(|word| {
            let distance = u64::from(word).checked_sub(own);
            word == 0 || distance.is_some_and(|blocks| blocks > 0 && blocks % self.per_group == 0)
        })
    }

    fn descriptors<'a>(
        &self,
        number: u64,
        block: &'a [u8],
    ) -> impl Iterator<Item = (u64, &'a [u8])> {
        let groups = number * self.in_block()..self.groups;
        groups.zip(block.chunks_exact(self.size))
    }

    /// Whether a descriptor has the checksum that it should have (`ext4_group_desc_csum`, fs/ext4/super.c). Without
    /// checksums, whether its blocks are where they may be (`ext4_check_descriptors`).
    fn is_whole(&self, group: u64, descriptor: &[u8]) -> bool {
        let Some(seed) = self.seed else {
            return self.is_possible(group, descriptor);
        };
        let number = u32::try_from(group).unwrap_or(u32::MAX).to_le_bytes();
        let sum = crc32c_after(seed, &number);
        let sum = crc32c_after(sum, &descriptor[..CHECKSUM]);
        let sum = crc32c_after(sum, &[0; 2]);
        let sum = crc32c_after(sum, &descriptor[CHECKSUM + 2..]);
        le16(descriptor, CHECKSUM).map(u32::from) == Some(sum & 0xffff)
    }

    fn is_possible(&self, group: u64, descriptor: &[u8]) -> bool {
        let from = self.all.start + group * self.per_group;
        let within = match self.flexible {
            true => self.all.clone(),
            false => from..self.all.end.min(from + self.per_group),
        };
        BLOCKS.into_iter().all(|(low, high)| {
            let high = le32(descriptor, high).filter(|_| self.size > 32);
            let block = le32(descriptor, low)
                .map(|low| u64::from(high.unwrap_or(0)) << 32 | u64::from(low));
            block.is_some_and(|block| block > 0 && within.contains(&block))
        })
    }
}
