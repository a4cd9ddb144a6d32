//! The check before every mkfs: a device that is not proven blank is refused and stays unchanged.

use crate::bench::{Bench, attach, bare, make, run};
use flexvol_host::block::probe::{self, Content};
use flexvol_sdk::Filesystem;
use flexvol_testing::{
    Need, Points, Random, budget,
    images::{Blank, KINDS, Origin, VARIANTS},
    tests,
};
use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

tests! {
    "no image that is not blank is taken for blank, or changed", &[Need::Root, Need::Tool("mkfs.ext4", "e2fsprogs"), Need::Tool("mkfs.xfs", "xfsprogs"), Need::Tool("mkfs.btrfs", "btrfs-progs"), Need::Tool("mkfs.minix", "util-linux"), Need::Tool("mkfs.cramfs", "util-linux"), Need::Tool("mkfs.bfs", "util-linux")]
        => refused;
    "every blank image is formatted, however its zeros came about", &[Need::Root, Need::Tool("mkfs.ext4", "e2fsprogs")]
        => accepted;
}

/// Larger images are not also read as a whole device.
const SMALL: u64 = 40 << 20;

fn refused(points: &Points) {
    let bench = Bench::new();
    let (mut made, mut documented, mut refused) = (0, 0, 0);
    let started = Instant::now();
    let mut kinds: Vec<_> = KINDS.iter().collect();
    Random::new(budget().seed).shuffle(&mut kinds);
    for kind in kinds {
        if !budget().allows(started) {
            break;
        }
        match kind.origin {
            Origin::Tool(_) => made += 1,
            Origin::Documented => documented += 1,
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
            refused += 1;
        }
        assert_eq!(digests(&images), before, "{} was changed", kind.name);
        for path in images {
            fs::remove_file(path).unwrap();
        }
    }
    let what = format!(
        "images that are not blank refused: {made} kinds by their tools, {documented} as documented"
    );
    let all = KINDS.len() * VARIANTS.len();
    points.report("format guard", refused, all, &what);
}

/// Whether the probe recognized the content.
fn named(found: &Content) -> bool {
    *found != Content::Foreign(probe::UNKNOWN)
}

/// Whether this kind is a format. The others are plain bytes.
fn is_format(kind: &str) -> bool {
    kind != "random data" && !kind.contains("byte")
}

/// Whether a probe of the head alone may differ from a full one.
fn head_may_differ(quick: &Content) -> bool {
    matches!(quick, Content::Blank | Content::Formatted(_))
        || *quick == Content::Foreign(probe::UNKNOWN)
}

/// The SHA-256 of each file.
pub fn digests(images: &[impl AsRef<OsStr>]) -> String {
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
    let filesystems = [Filesystem::Ext4, Filesystem::Ext3];
    let mut images: Vec<_> = sizes
        .into_iter()
        .flat_map(|size| Blank::ALL.map(|blank| (size, blank)))
        .flat_map(|(size, blank)| filesystems.map(|filesystem| (size, blank, filesystem)))
        .collect();
    Random::new(budget().seed).shuffle(&mut images);
    let (started, all, mut formatted) = (Instant::now(), images.len(), 0);
    for (size, blank, filesystem) in images {
        if !budget().allows(started) {
            break;
        }
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
        make(&device, filesystem, true);
        check(device.path());
        drop(device);
        fs::remove_file(path).unwrap();
        formatted += 1;
    }
    points.report("format guard", formatted, all, "blank images formatted");
}

fn check(device: &Path) {
    run("e2fsck", ["-f", "-n"].map(OsStr::new), device);
}
