use super::*;
use std::fs::File;

const MIB: u64 = 1 << 20;

/// `size` MiB long, with `blocks` MiB allocated.
fn stat(size: u64, blocks: u64) -> Stat {
    let mut stat = fstat(File::open("/proc/self/exe").unwrap()).unwrap();
    stat.st_size = i64::try_from(size * MIB).unwrap();
    stat.st_blocks = i64::try_from(blocks * MIB / 512).unwrap();
    stat
}

fn seen(size: u64, all: u64, own: u64, unread: u64) -> ImageBlocks {
    let of = |mebibytes: u64| Bytes(mebibytes * MIB);
    ImageBlocks {
        stat: stat(size, all),
        below: of(size),
        blocks: Blocks {
            all: of(all),
            own: of(own),
            unread: of(unread),
            is_exact: true,
        },
        in_place: true,
    }
}

fn mebibytes(bytes: Bytes) -> u64 {
    bytes.0 / MIB
}

#[test]
fn what_is_not_read_may_be_a_hole() {
    let (read, unread) = (seen(100, 100, 100, 0), seen(100, 100, 60, 40));
    for seen in [read, unread] {
        assert!(seen.has_everywhere(Bytes(100 * MIB)));
    }
    assert!(read.surely_has_everywhere(Bytes(100 * MIB)));
    assert!(!unread.surely_has_everywhere(Bytes(100 * MIB)));
}

#[test]
fn what_is_gone_has_no_blocks_anywhere() {
    let after = seen(100, 100, 100, 0).after(stat(100, 90), Bytes(100 * MIB));
    assert!(!after.has_everywhere(Bytes(100 * MIB)));
    assert_eq!(mebibytes(after.lacks()), 10);
    assert_eq!(mebibytes(after.may_share()), 0);
}

#[test]
fn an_image_that_grew_owns_what_it_gained() {
    let before = seen(100, 100, 100, 0);
    let grown = before.after(stat(150, 150), Bytes(150 * MIB));
    assert_eq!(mebibytes(grown.may_lack()), 0);
    // A longer file alone has no more blocks.
    let grown = before.after(stat(150, 100), Bytes(150 * MIB));
    assert_eq!(mebibytes(grown.may_lack()), 50);
    // Without growth, new blocks do not count: they may belong to the file system's map.
    let lacking = seen(100, 90, 80, 0).after(stat(100, 95), Bytes(100 * MIB));
    assert_eq!(mebibytes(lacking.may_lack()), 20);
    let lacking = seen(100, 100, 80, 0).after(stat(150, 160), Bytes(150 * MIB));
    assert_eq!(mebibytes(lacking.may_lack()), 20);
}

#[test]
fn pools_beside_each_other_owe_what_both_do() {
    let owed = |blocks: u64, maps_of: Option<u64>| Debt {
        blocks: Bytes(blocks),
        maps_of: maps_of.map(Bytes),
    };
    let whole = owed(1, Some(20));
    assert_eq!(whole.and(owed(300, Some(4000))), owed(301, Some(4020)));
    let thin = owed(0, None);
    assert_eq!(whole.and(thin), whole);
    assert_eq!(thin.and(whole), whole);
    // Without images there are no maps.
    assert_eq!(thin.and(owed(0, Some(0))), thin);
}
