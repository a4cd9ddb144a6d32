//! Finds the superblock that a replay of the journal writes: `do_one_pass` of fs/jbd2/recovery.c, for one block.

use super::{Journal, MAGIC, START};
use crate::superblock::be32;
use std::io;

/// Kinds of log blocks (`h_blocktype`).
const DESCRIPTOR: u32 = 1;
const COMMIT: u32 = 2;
const REVOKE: u32 = 5;
/// The journal's superblock in version 2, which has feature words.
const SUPERBLOCK_V2: u32 = 4;

/// Features of the journal.
const HAS_64_BIT: u32 = 0x2;
const CHECKSUM_V2: u32 = 0x8;
const CHECKSUM_V3: u32 = 0x10;
const FAST_COMMIT: u32 = 0x20;

/// Blocks for fast commits at the journal's end, where its superblock gives no number
/// (`JBD2_DEFAULT_FAST_COMMIT_BLOCKS`).
const FAST_BLOCKS: u32 = 256;

/// Maximum length of a journal in blocks (`ext2fs_add_journal_inode3` of e2fsprogs refuses more).
const MOST_BLOCKS: u32 = 10_240_000;

/// Length of the header of a log block: magic number, kind, and transaction number.
const HEADER: usize = 12;

/// Flags of a tag: its data block begins with [`MAGIC`], which the log replaces by zero; no UUID follows the tag; it is
/// the last tag.
const ESCAPED: u32 = 0x1;
const SAME_UUID: u32 = 0x2;
const LAST: u32 = 0x8;
const UUID_LENGTH: usize = 16;

/// Position and format of the log inside the journal.
struct Log {
    features: u32,
    first: u32,
    end: u32,
    start: u32,
    transaction: u32,
}

/// Destination of a data block, and how the log stores it.
struct Tag {
    block: u64,
    flags: u32,
}

impl Journal<'_> {
    /// Returns the superblock that a replay leaves: that of the last committed transaction that has one.
    pub(in super::super) fn last_superblock(&self) -> io::Result<Option<[u8; 1024]>> {
        let (number, from) = match self.block {
            1024 => (1, 0),
            _ => (0, 1024),
        };
        let block = self.last(number)?;
        Ok(block.and_then(|block| block[from..].first_chunk().copied()))
    }

    /// Returns a block of the file system as a replay leaves it: as in the last committed transaction that has it.
    pub(in super::super) fn last(&self, number: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(log) = self.block(0)?.and_then(|block| Log::read(&block)) else {
            return Ok(None);
        };
        let (mut committed, mut written) = (None, None);
        let (mut at, mut transaction) = (log.start, log.transaction);
        // Every block counts, data blocks too, so a log that runs into itself ends.
        let mut left = (log.end - log.first).min(MOST_BLOCKS);
        while left > 0 {
            left -= 1;
            let Some(block) = self.block(at)? else { break };
            if (be32(&block, 0), be32(&block, 8)) != (Some(MAGIC), Some(transaction)) {
                break;
            }
            at = log.after(at);
            match be32(&block, 4) {
                Some(DESCRIPTOR) => {
                    for tag in log.tags(&block) {
                        let Some(rest) = left.checked_sub(1) else {
                            return Ok(committed);
                        };
                        left = rest;
                        if tag.block == number {
                            written = self.data(at, &tag)?;
                        }
                        at = log.after(at);
                    }
                }
                Some(COMMIT) => {
                    committed = written.take().or(committed);
                    transaction = transaction.wrapping_add(1);
                }
                Some(REVOKE) => {}
                _ => break,
            }
        }
        Ok(committed)
    }

    /// Reads a data block in the log.
    fn data(&self, at: u32, tag: &Tag) -> io::Result<Option<Vec<u8>>> {
        let mut block = self.block(at)?;
        if let Some(block) = &mut block
            && tag.flags & ESCAPED != 0
        {
            block[..4].copy_from_slice(&MAGIC.to_be_bytes());
        }
        Ok(block)
    }
}

impl Log {
    /// Parses the journal's superblock; `None` where there is nothing to replay.
    fn read(block: &[u8]) -> Option<Self> {
        let features = match be32(block, 4)? {
            SUPERBLOCK_V2 => be32(block, 0x28)?,
            _ => 0,
        };
        let fast = match (features & FAST_COMMIT, be32(block, 0x54)?) {
            (0, _) => 0,
            (_, 0) => FAST_BLOCKS,
            (_, blocks) => blocks,
        };
        let log = Log {
            features,
            first: be32(block, 0x14)?,
            end: be32(block, 0x10)?.checked_sub(fast)?,
            start: be32(block, START)?,
            transaction: be32(block, 0x18)?,
        };
        let is_log = be32(block, 0) == Some(MAGIC) && log.first > 0;
        (is_log && (log.first..log.end).contains(&log.start)).then_some(log)
    }

    /// Returns the block after `at`; the log is a ring.
    fn after(&self, at: u32) -> u32 {
        match at + 1 {
            next if next < self.end => next,
            _ => self.first,
        }
    }

    /// Parses the tags of a descriptor block, one for each data block that follows it.
    fn tags(&self, descriptor: &[u8]) -> Vec<Tag> {
        let mut tags = Vec::new();
        let mut at = HEADER;
        while let Some((tag, length)) = descriptor.get(at..).and_then(|left| self.tag(left)) {
            let is_last = tag.flags & LAST != 0;
            tags.push(tag);
            if is_last {
                break;
            }
            at += length;
        }
        tags
    }

    /// Parses a `journal_block_tag3_t` or `journal_block_tag_t`, and returns its length (`journal_tag_bytes`,
    /// fs/jbd2/journal.c).
    fn tag(&self, bytes: &[u8]) -> Option<(Tag, usize)> {
        let has = |feature| self.features & feature != 0;
        let (flags, high, length) = match has(CHECKSUM_V3) {
            true => (be32(bytes, 4)?, 8, 16),
            // A 16-bit checksum precedes the flags.
            false => {
                let length =
                    8 + 4 * usize::from(has(HAS_64_BIT)) + 2 * usize::from(has(CHECKSUM_V2));
                (be32(bytes, 4)? & 0xffff, 8, length)
            }
        };
        let high = match has(HAS_64_BIT) {
            true => be32(bytes, high)?,
            false => 0,
        };
        let uuid = match flags & SAME_UUID {
            0 => UUID_LENGTH,
            _ => 0,
        };
        let tag = Tag {
            block: u64::from(high) << 32 | u64::from(be32(bytes, 0)?),
            flags,
        };
        Some((tag, length + uuid))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::superblock;
    use super::*;
    use std::{fs::File, os::unix::fs::FileExt};

    const BLOCKS: u32 = 8;

    /// Journal of eight blocks of 4 KiB whose log begins in block 6, with transaction 40.
    fn journal(features: u32, log: &[Vec<u8>]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let mut head = block(SUPERBLOCK_V2, 0);
        for (at, word) in [
            (0x10, BLOCKS),
            (0x14, 1),
            (0x18, 40),
            (START, 6),
            (0x28, features),
        ] {
            head[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        file.write_all_at(&head, 5 * 4096).unwrap();
        for (block, at) in log.iter().zip([6, 7, 1, 2, 3, 4, 5]) {
            file.write_all_at(block, (5 + at) * 4096).unwrap();
        }
        file
    }

    fn block(kind: u32, transaction: u32) -> Vec<u8> {
        let mut block = [MAGIC, kind, transaction].map(u32::to_be_bytes).concat();
        block.resize(4096, 0);
        block
    }

    /// Descriptor block with these tags, given in words of 32 bits.
    fn descriptor(transaction: u32, tags: &[u32]) -> Vec<u8> {
        let mut block = block(DESCRIPTOR, transaction);
        for (at, word) in tags.iter().enumerate() {
            block[HEADER + at * 4..][..4].copy_from_slice(&word.to_be_bytes());
        }
        block
    }

    fn data(byte: u8) -> Vec<u8> {
        vec![byte; 4096]
    }

    fn found(features: u32, log: &[Vec<u8>]) -> Option<u8> {
        let (file, superblock) = (journal(features, log), superblock(true));
        let journal = Journal::new(&file, &superblock).unwrap();
        let last = journal.last_superblock().unwrap();
        last.map(|last| last[0])
    }

    #[test]
    fn the_last_committed_one_counts() {
        let of_superblock = [0, SAME_UUID | LAST, 0, 0];
        let mut log = vec![
            descriptor(40, &of_superblock),
            data(1),
            block(COMMIT, 40),
            descriptor(41, &of_superblock),
            data(2),
        ];
        assert_eq!(found(CHECKSUM_V3, &log), Some(1));
        // Remains of an earlier pass of the ring.
        log.push(block(COMMIT, 33));
        assert_eq!(found(CHECKSUM_V3, &log), Some(1));
        log[5] = block(COMMIT, 41);
        assert_eq!(found(CHECKSUM_V3, &log), Some(2));
        assert_eq!(found(CHECKSUM_V3, &log[..2]), None);
    }

    #[test]
    fn tags_are_as_long_as_the_features_say() {
        let revoked = block(REVOKE, 40);
        let log = |tags: &[u32]| {
            [
                revoked.clone(),
                descriptor(40, tags),
                data(1),
                data(2),
                block(COMMIT, 40),
            ]
        };
        // The second tag has the low half of the superblock's block number.
        let far = [9, SAME_UUID, 0, 0, 0, SAME_UUID | LAST, 1, 0];
        assert_eq!(found(CHECKSUM_V3 | HAS_64_BIT, &log(&far)), None);
        assert_eq!(found(CHECKSUM_V3, &log(&far)), Some(2));
        let with_uuid = [9, 0, 7, 7, 7, 7, 0, SAME_UUID | LAST];
        assert_eq!(found(0, &log(&with_uuid)), Some(2));
        let wide = [9, 0xaaaa_0002, 0, 0, 0xbbbb_000a, 0];
        assert_eq!(found(HAS_64_BIT, &log(&wide)), Some(2));
        // 14 bytes each.
        let checked = [9, SAME_UUID, 0, 0, 0, (SAME_UUID | LAST) << 16, 0];
        assert_eq!(found(CHECKSUM_V2 | HAS_64_BIT, &log(&checked)), Some(2));
        let escaped = [0, SAME_UUID | ESCAPED, 9, SAME_UUID | LAST];
        assert_eq!(found(0, &log(&escaped)), Some(1));
    }

    #[test]
    fn where_nothing_is_to_be_replayed_there_is_none() {
        let (file, superblock) = (journal(0, &[]), superblock(true));
        for (at, word) in [(START, 0u32), (START, BLOCKS), (0x14, 0), (0, 7)] {
            let file = file.try_clone().unwrap();
            let at = 5 * 4096 + u64::try_from(at).unwrap();
            let mut before = [0; 4];
            file.read_exact_at(&mut before, at).unwrap();
            file.write_all_at(&word.to_be_bytes(), at).unwrap();
            let journal = Journal::new(&file, &superblock).unwrap();
            assert!(journal.last_superblock().unwrap().is_none());
            file.write_all_at(&before, at).unwrap();
        }
    }
}
