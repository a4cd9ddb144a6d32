//! Probes a device whose bytes come from the input: eight for its size, then patches of an empty head and tail, each
//! with its offset (three bytes, whose highest bit selects the tail) and its length (one).
//!
//! A superblock that counts as complete must be reported with its own size and UUID, whatever a tenant wrote behind
//! it.
#![no_main]

use flexvol_fuzz::within;
use flexvol_host::{
    block::probe::Content,
    fuzzing::{classify, ext_slack, superblocks},
    superblock::{HEAD, Superblock},
};
use flexvol_sdk::{Bytes, Filesystem};
use libfuzzer_sys::fuzz_target;
use std::sync::Mutex;

/// Covers every location near the end, except ZFS' labels.
const TAIL: usize = 132 << 10;

/// The head, then the tail. Static, because allocating them takes most of the time of a run.
static MEMORY: Mutex<[u8; HEAD + TAIL]> = Mutex::new([0; HEAD + TAIL]);

fuzz_target!(|data: &[u8]| {
    let Some((size, patches)) = data.split_first_chunk::<8>() else {
        return;
    };
    let size = Bytes(u64::from_le_bytes(*size));
    let mut memory = MEMORY.lock().expect("one thread");
    let (head, tail) = memory.split_at_mut(HEAD);
    head.fill(0);
    tail.fill(0);
    patch(patches, head, tail);
    let end = size.0.saturating_sub(TAIL as u64);

    let (found, alone, content) = within(1024, || {
        let found = superblocks(head);
        let alone = classify(size, head, end, &[]);
        (found, alone, classify(size, head, end, tail))
    });
    let behind = [2048, 512, HEAD];
    for (turn, found) in found.iter().enumerate() {
        let (with, without) = (&head[..behind[turn]], &head[..behind[turn] - 1]);
        assert_eq!(superblocks(with)[turn], *found);
        assert_eq!(superblocks(without)[turn], Ok(None), "half a superblock");
        if let Ok(Some(superblock)) = found {
            is_what_stands_there(superblock, head);
        }
    }
    let is_ext = matches!(found[0], Ok(Some(_)));
    assert_eq!(ext_slack(head).is_some(), is_ext);
    if let (Ok(Some(ext)), Some(slack)) = (&found[0], ext_slack(head)) {
        let group = u64::from(le32(head, 1024 + 0x20)) * u64::from(ext.block);
        assert!(slack.0 < group + u64::from(ext.block));
    }
    if let Some(Content::Formatted(superblock)) = &content {
        assert_eq!(alone, content, "the end of a device formats nothing");
        assert!(found.contains(&Ok(Some(superblock.clone()))));
    }
    if let Some(Content::Formatted(superblock)) = alone {
        let behind = match superblock.filesystem {
            Filesystem::Xfs => 512,
            Filesystem::Btrfs => HEAD,
            _ => 2048,
        };
        head[behind..].fill(0xa5);
        let still = classify(size, head, end, &[]);
        assert_eq!(still, Some(Content::Formatted(superblock)));
    }
});

fn patch(mut patches: &[u8], head: &mut [u8], tail: &mut [u8]) {
    while let Some(([a, b, c, length], rest)) = patches.split_first_chunk() {
        let place = u32::from_le_bytes([*a, *b, *c & 0x7f, 0]) as usize;
        let part = if c & 0x80 == 0 {
            &mut *head
        } else {
            &mut *tail
        };
        let place = place % part.len();
        let length = usize::from(*length).min(rest.len()).min(part.len() - place);
        part[place..place + length].copy_from_slice(&rest[..length]);
        patches = &rest[length..];
    }
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("four bytes"))
}

/// Checks the size with other arithmetic, and the UUID at its offset.
fn is_what_stands_there(superblock: &Superblock, head: &[u8]) {
    let big = |at: usize| {
        u128::from(u64::from_be_bytes(
            *head[at..].first_chunk().expect("eight"),
        ))
    };
    let (uuid, size) = match superblock.filesystem {
        Filesystem::Xfs => (32, big(8) * u128::from(superblock.block)),
        Filesystem::Btrfs => {
            let size = head[0x100d1..].first_chunk().expect("eight bytes");
            (0x10020, u128::from(u64::from_le_bytes(*size)))
        }
        _ => {
            let wide = le32(head, 1024 + 0x4c) != 0 && le32(head, 1024 + 0x60) & 0x80 != 0;
            let high = if wide { le32(head, 1024 + 0x150) } else { 0 };
            let blocks = u128::from(high) << 32 | u128::from(le32(head, 1028));
            (1024 + 0x68, blocks * u128::from(superblock.block))
        }
    };
    assert_eq!(u128::from(superblock.size.0), size);
    assert!(superblock.size.0 > 0);
    assert!(superblock.block.is_power_of_two() && (512..=65536).contains(&superblock.block));
    assert_eq!(superblock.uuid.as_bytes()[..], head[uuid..uuid + 16]);
}
