use super::*;
use proptest::prelude::*;

const ID: [u8; 16] = *b"0123456789abcdef";

fn head_with(fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut head = vec![0; HEAD];
    for (at, bytes) in fields {
        head[*at..*at + bytes.len()].copy_from_slice(bytes);
    }
    head
}

fn ext_head(blocks: u64, compatible: u32, incompatible: u32, read_only: u32) -> Vec<u8> {
    let low = u32::try_from(blocks & 0xffff_ffff).unwrap();
    let high = u32::try_from(blocks >> 32).unwrap();
    head_with(&[
        (1024 + 0x4, &low.to_le_bytes()),
        (1024 + 0x18, &2u32.to_le_bytes()),
        (1024 + 0x20, &32768u32.to_le_bytes()),
        (1024 + 0x28, &8192u32.to_le_bytes()),
        (1024 + 0x38, &[0x53, 0xef]),
        (1024 + 0x4c, &1u32.to_le_bytes()),
        (1024 + 0x58, &256u16.to_le_bytes()),
        (1024 + 0x5c, &compatible.to_le_bytes()),
        (1024 + 0x60, &incompatible.to_le_bytes()),
        (1024 + 0x64, &read_only.to_le_bytes()),
        (1024 + 0x68, &ID),
        (1024 + 0xfe, &64u16.to_le_bytes()),
        (1024 + 0x150, &high.to_le_bytes()),
    ])
}

fn xfs_head(block: u32, blocks: u64) -> Vec<u8> {
    let groups = u32::try_from(blocks.div_ceil(1 << 20)).unwrap();
    head_with(&[
        (0, b"XFSB"),
        (4, &block.to_be_bytes()),
        (8, &blocks.to_be_bytes()),
        (32, &ID),
        (84, &(1u32 << 20).to_be_bytes()),
        (88, &groups.to_be_bytes()),
    ])
}

fn btrfs_head(size: u64, devices: u64) -> Vec<u8> {
    head_with(&[
        (0x10020, &ID),
        (0x10030, &0x10000u64.to_le_bytes()),
        (0x10040, b"_BHRfS_M"),
        (0x10070, &size.to_le_bytes()),
        (0x10088, &devices.to_le_bytes()),
        (0x10090, &4096u32.to_le_bytes()),
        (0x100c9, &1u64.to_le_bytes()),
        (0x100d1, &size.to_le_bytes()),
    ])
}

#[test]
fn ext_kinds_are_told_by_their_features() {
    for (name, compatible, incompatible, read_only, expected) in [
        ("plain", 0, 0x2, 0x1, Err("ext2")),
        ("journal", 0x4, 0x2, 0x1, Ok(Filesystem::Ext3)),
        ("needs recovery", 0x4, 0x6, 0x3, Ok(Filesystem::Ext3)),
        ("extents", 0x4, 0x42, 0x1, Ok(Filesystem::Ext4)),
        ("metadata_csum", 0x4, 0x2, 0x401, Ok(Filesystem::Ext4)),
        ("no journal", 0, 0x42, 0x1, Ok(Filesystem::Ext4)),
        ("journal device", 0, 0x8, 0, Err("ext journal device")),
    ] {
        match (
            ext(&ext_head(1000, compatible, incompatible, read_only)),
            expected,
        ) {
            (Found::Whole(found), Ok(filesystem)) => {
                assert_eq!(found.filesystem, filesystem, "{name}");
                assert_eq!(found.size, Bytes(1000 * 4096), "{name}");
            }
            (Found::Other(found), Err(kind)) => assert_eq!(found, kind, "{name}"),
            (found, _) => panic!("{name}: {found:?}"),
        }
    }
}

#[test]
fn the_high_half_of_ext4_block_counts_needs_its_feature() {
    let Found::Whole(wide) = ext(&ext_head(1 << 33, 0x4, 0x42 | 0x80, 0)) else {
        panic!("not recognized");
    };
    assert_eq!(wide.size, Bytes((1 << 33) * 4096));
    assert_eq!(
        ext(&ext_head(1 << 33, 0x4, 0x42, 0)),
        Found::Other("damaged ext superblock")
    );
}

#[test]
fn ext_slack_is_a_groups_metadata_and_fifty_blocks() {
    let details = ext_details(&ext_head(1000, 0x4, 0x42 | 0x80, 0)).unwrap();
    // 8192 inodes of 256 bytes: 512 blocks; one descriptor block; two bitmaps, a superblock.
    assert_eq!(details.slack, Bytes((512 + 1 + 3 + 50) * 4096 + 4095));
    assert!(!details.has_errors);
}

#[test]
fn ext_numbers_blocks_beyond_32_bits_only_with_the_feature() {
    let most = |features| {
        let details = ext_details(&ext_head(1000, 0x4, features, 0)).unwrap();
        details.most_blocks
    };
    assert_eq!(most(0x42 | 0x80), u64::MAX);
    assert_eq!(most(0x42), u64::from(u32::MAX));
}

#[test]
fn an_xfs_in_progress_is_half_made() {
    let mut head = xfs_head(4096, 1000);
    assert!(matches!(xfs(&head), Found::Whole(_)));
    head[126] = 1;
    assert_eq!(xfs(&head), Found::Other("half-made xfs"));
}

#[test]
fn a_btrfs_of_two_devices_or_with_the_temporary_magic_is_not_ours() {
    assert_eq!(btrfs(&btrfs_head(1 << 30, 2)), Found::Other(SPREAD));
    let mut head = btrfs_head(1 << 30, 1);
    head[0x100c9] = 2;
    assert_eq!(
        btrfs(&head),
        Found::Other("btrfs that was moved to another device")
    );
    let mut head = btrfs_head(1 << 30, 1);
    head[0x10040] = b'!';
    assert_eq!(btrfs(&head), Found::Other("half-made btrfs"));
}

proptest! {
    #[test]
    fn sizes_are_read_back(blocks in 1u64..1 << 40, log in 9u32..=16) {
        let block = 1u32 << log;
        let size = |found| match found {
            Found::Whole(sb) => Some((sb.size, sb.uuid)),
            _ => None,
        };
        let id = Uuid::from_bytes(ID);
        prop_assert_eq!(
            size(xfs(&xfs_head(block, blocks))),
            Some((Bytes(blocks * u64::from(block)), id))
        );
        prop_assert_eq!(
            size(ext(&ext_head(blocks, 4, 0xc2, 0))),
            Some((Bytes(blocks * 4096), id))
        );
        prop_assert_eq!(
            size(btrfs(&btrfs_head(blocks * 4096, 1))),
            Some((Bytes(blocks * 4096), id))
        );
    }

    /// Arbitrary bytes with the right magic number must not panic.
    #[test]
    fn no_bytes_panic(
        mut sb in proptest::collection::vec(any::<u8>(), 0..4200),
        length in 0..=HEAD,
        place in prop::sample::select(vec![0usize, 1024, 0x10000]),
    ) {
        for (at, magic) in [(0, &b"XFSB"[..]), (0x38, &[0x53, 0xef]), (0x40, b"_BHRfS_M")] {
            if let Some(bytes) = sb.get_mut(at..at + magic.len()) {
                bytes.copy_from_slice(magic);
            }
            let mut head = vec![0; HEAD];
            let end = (place + sb.len()).min(HEAD);
            head[place..end].copy_from_slice(&sb[..end - place]);
            head.truncate(length);
            let _ = (ext(&head), ext_details(&head), xfs(&head), btrfs(&head));
        }
    }
}
