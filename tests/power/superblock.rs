//! Cuts in which an ext4 volume's superblock or group descriptors are torn or old. Hardly one in a thousand random images
//! has these.

use crate::{
    cut::{Cut, Surviving},
    story::{SIZE, Story},
};
use std::{cell::RefCell, collections::BTreeSet};

/// Size of a block of the volume's ext4.
pub const BLOCK: u64 = 4096;

/// Where the superblock is in the first one.
const SUPERBLOCK: u64 = 1024;

/// Torn writes of the superblock of a volume's ext4: right after the write, and when everything until the next flush
/// was written. The same without the block of the superblock, and without that of the group descriptors.
pub fn cuts(story: &Story) -> Vec<Cut> {
    let is_superblock = |to, data: &[u8]| of_ext4(to, data).is_some();
    let writes = story.log.writes(is_superblock).unwrap();
    let moments = writes.iter().flat_map(|number| {
        // A write with FUA is not torn, and the next flush may be the one of the write itself.
        [number + 1, story.log.flush_after(*number)]
    });
    let moments: BTreeSet<usize> = moments.filter(|moment| *moment > story.start).collect();
    let torn = moments.iter().flat_map(|moment| {
        [0, 1].map(|sector| (*moment, Surviving::AllButSectorOfSuperblock(sector)))
    });
    let lost = every_write_of_blocks(story)
        .into_iter()
        .flat_map(|moment| [0, 1].map(|block| (moment, Surviving::AllButBlock(block))));
    let mut cuts: Vec<Cut> = torn.chain(lost).collect();
    cuts.sort_unstable();
    cuts
}

/// Moments after a write to the first two blocks of a volume's ext4, and when everything until the next flush was
/// written.
fn every_write_of_blocks(story: &Story) -> BTreeSet<usize> {
    let Some(from) = beginning(story) else {
        return BTreeSet::new();
    };
    let is_there = |to: u64, data: &[u8]| {
        let end = to + u64::try_from(data.len()).unwrap();
        to < from + 2 * BLOCK && end > from
    };
    let writes = story.log.writes(is_there).unwrap();
    let moments = writes
        .iter()
        .flat_map(|number| [number + 1, story.log.flush_after(*number)]);
    moments.filter(|moment| *moment > story.start).collect()
}

/// Where the volume's ext4 begins on the disk: mkfs writes its superblock there first. Later ones may be copies in its
/// journal, or in that of the pool's file system, which has another size.
pub fn beginning(story: &Story) -> Option<u64> {
    const BLOCKS: usize = 4;
    let found = RefCell::new(Vec::new());
    let is_of_volume = |to, data: &[u8]| {
        let at = of_ext4(to, data);
        let blocks = at.and_then(|at| {
            data.get(usize::try_from(at).ok()? + BLOCKS..)?
                .first_chunk()
        });
        let is_it =
            blocks.is_some_and(|blocks| u64::from(u32::from_le_bytes(*blocks)) == SIZE / BLOCK);
        if is_it {
            found.borrow_mut().extend(at.map(|at| to + at - SUPERBLOCK));
        }
        is_it
    };
    let writes = story.log.writes(is_of_volume).unwrap();
    let mut all = writes.into_iter().zip(found.into_inner());
    all.find(|(number, _)| *number >= story.start)
        .map(|(_, from)| from)
}

/// Offset in a write of a superblock of ext4, except that of the disk's own file system.
pub fn of_ext4(to: u64, data: &[u8]) -> Option<u64> {
    const MAGIC: usize = 1024 + 0x38;
    let mut blocks = data.chunks_exact(4096);
    let is_one = |block: &[u8]| block[MAGIC..MAGIC + 2] == [0x53, 0xef];
    let number = u64::try_from(blocks.position(is_one)?).unwrap();
    (to > 0 || number > 0).then_some(number * BLOCK + SUPERBLOCK)
}
