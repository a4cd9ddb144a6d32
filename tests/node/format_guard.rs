//! The gate before every mkfs: what is not proven blank is refused and untouched.

use crate::bench::{Bench, attach, bare, make, run};
use flexvol_host::probe::{self, Content};
use flexvol_sdk::Filesystem;
use flexvol_testing::{
    Need, Points, Test,
    images::{Blank, KINDS, Origin, VARIANTS},
};
use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

pub const TESTS: &[Test] = &[
    Test {
        name: "no image that is not blank is taken for blank, or changed",
        needs: &[
            Need::Root,
            Need::Tool("mkfs.ext4", "e2fsprogs"),
            Need::Tool("mkfs.xfs", "xfsprogs"),
            Need::Tool("mkfs.btrfs", "btrfs-progs"),
            Need::Tool("mkfs.minix", "util-linux"),
            Need::Tool("mkfs.cramfs", "util-linux"),
            Need::Tool("mkfs.bfs", "util-linux"),
        ],
        run: refused,
    },
    Test {
        name: "every blank image is formatted, however its zeros came about",
        needs: &[Need::Root, Need::Tool("mkfs.ext4", "e2fsprogs")],
        run: accepted,
    },
];

/// Larger images are not read as a whole device too.
const SMALL: u64 = 40 << 20;

fn refused(points: &Points) {
    let bench = Bench::new();
    let (mut tools, mut documented) = (Vec::new(), Vec::new());
    for kind in KINDS {
        match kind.origin {
            Origin::Tool(program) => tools.push(format!("{} by {program}", kind.name)),
            Origin::Documented => documented.push(kind.name),
        }
        let content = kind.make(&bench.path("scratch"));
        let images: Vec<PathBuf> = VARIANTS
            .iter()
            .map(|variant| {
                let path = bench.image_name();
                variant.apply(&content).write(&path, variant.allocated);
                path
            })
            .collect();
        let before = digests(&images);
        for (path, variant) in images.iter().zip(VARIANTS) {
            let what = format!("{}, {}", kind.name, variant.name);
            let device = attach(path);
            let found = probe::thorough(&device);
            assert!(
                matches!(found, Content::Foreign(_) | Content::Formatted(_)),
                "{what}: {found:?}"
            );
            if variant.name == VARIANTS[0].name {
                assert_eq!(named(&found), is_format(kind.name), "{what}: {found:?}");
            }
            if device.size().unwrap().0 < SMALL {
                assert_eq!(probe::thorough(&bare(&device)), found, "{what}, as a disk");
            }
            let quick = probe::quick(&device);
            assert!(
                quick == found || head_may_differ(&quick),
                "{what}: {quick:?}"
            );
            drop(device);
            points.add(1);
        }
        assert_eq!(digests(&images), before, "{} was changed", kind.name);
        for path in images {
            fs::remove_file(path).unwrap();
        }
    }
    println!("  by the real tool: {}", tools.join(", "));
    println!("  from documented magic numbers: {}", documented.join(", "));
}

/// Whether a look recognized what it found.
fn named(found: &Content) -> bool {
    *found != Content::Foreign(probe::UNKNOWN)
}

/// The kinds that have no format are bytes only.
fn is_format(kind: &str) -> bool {
    kind != "random data" && !kind.contains("byte")
}

/// A look at the head alone knows less of what follows.
fn head_may_differ(quick: &Content) -> bool {
    matches!(quick, Content::Blank | Content::Formatted(_))
        || *quick == Content::Foreign(probe::UNKNOWN)
}

/// The SHA-256 of each file.
fn digests(images: &[PathBuf]) -> String {
    let output = Command::new("sha256sum").args(images).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn accepted(points: &Points) {
    const MIB: u64 = 1 << 20;
    let sizes = [
        16 * MIB,
        16 * MIB + 512,
        16 * MIB + 4096,
        17 * MIB - 512,
        20 * MIB,
        24 * MIB + 1536,
        32 * MIB,
        33 * MIB + (64 << 10),
        48 * MIB,
        64 * MIB,
    ];
    let bench = Bench::new();
    for (size, blank) in sizes
        .into_iter()
        .flat_map(|size| Blank::ALL.map(|blank| (size, blank)))
    {
        let path = bench.image_name();
        blank.write(&path, size);
        let device = attach(&path);
        assert_eq!(probe::quick(&device), Content::Blank, "{blank:?} of {size}");
        assert_eq!(
            probe::thorough(&device),
            Content::Blank,
            "{blank:?} of {size}"
        );
        assert_eq!(
            probe::thorough(&bare(&device)),
            Content::Blank,
            "{blank:?} of {size}"
        );
        make(&device, Filesystem::Ext4, true);
        check(device.path());
        drop(device);
        fs::remove_file(path).unwrap();
        points.add(1);
    }
}

fn check(device: &Path) {
    run("e2fsck", ["-f", "-n"].map(OsStr::new), device);
}
