//! Pools: their creation, their permissions, and the names in them.

pub mod images;
pub mod space;

use crate::{
    bench::{Bench, mount},
    host_lock::any_volume,
    node::MIB,
};
use flexvol_host::{
    VolumeId,
    pool::{Image, Pool, Reserve},
};
use flexvol_sdk::{Bytes, ErrorKind, Filesystem, Handle, VolumeName};
use flexvol_testing::{Need, Points, tests};
use std::{
    collections::HashSet,
    fs::{self, File, Permissions},
    io::Write,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::PathBuf,
    thread,
};

const E2FS: Need = Need::Tool("mkfs.ext4", "e2fsprogs");
const XFS: Need = Need::Tool("mkfs.xfs", "xfsprogs");
const BTRFS: Need = Need::Tool("mkfs.btrfs", "btrfs-progs");

tests! {
    "a pool is made once, completed when half made, and told from an empty directory", &[Need::Root]
        => made;
    "a pool that others than root can change is refused", &[Need::Root] => not_private;
    "a name has one volume, whoever asks first", &[Need::Root] => names;
}

const NO_RESERVE: Reserve = Reserve::Percent(0);

fn bytes(mebibytes: u64) -> Bytes {
    Bytes(mebibytes * MIB)
}

/// Makes a pool in memory.
fn small() -> (Bench, Pool) {
    let bench = Bench::new();
    let path = bench.directory("tested");
    Pool::init(&path).unwrap();
    let pool = Pool::open(&path).unwrap();
    (bench, pool)
}

/// Makes a pool on a file system of its own.
fn on_disk(filesystem: Filesystem, mebibytes: u64) -> (Bench, Pool) {
    let bench = Bench::new();
    let device = bench.formatted(filesystem, mebibytes);
    let disk = bench.directory("mounted");
    mount(&device, filesystem, &disk, false);
    let path = disk.join("pool");
    fs::create_dir(&path).unwrap();
    Pool::init(&path).unwrap();
    let pool = Pool::open(&path).unwrap();
    symlink(&path, bench.path("tested")).unwrap();
    (bench, pool)
}

fn image(pool: &Pool, volume: &VolumeId) -> Image {
    pool.image(volume).unwrap().unwrap()
}

fn file_of(bench: &Bench, volume: &VolumeId) -> PathBuf {
    bench.path(format!("tested/volumes/{volume}"))
}

fn made(_: &Points) {
    let bench = Bench::new();
    let path = bench.path("tested");
    assert_eq!(Pool::init(&path).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(Pool::open(&path).unwrap_err().kind(), ErrorKind::NotFound);
    fs::create_dir(&path).unwrap();
    let error = Pool::open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        !error.to_string().contains(path.to_str().unwrap()),
        "{error}"
    );
    assert!(error.report().contains(path.to_str().unwrap()));

    // Interrupted after the first step.
    fs::create_dir(path.join("volumes")).unwrap();
    let (id, created) = Pool::init(&path).unwrap();
    assert!(created);
    assert_eq!(Pool::init(&path).unwrap(), (id, false));
    assert_eq!(Pool::open(&path).unwrap().id(), id);
    let text = fs::read_to_string(path.join(".flexvol-pool")).unwrap();
    assert_eq!(text, format!("flexvol-pool 2 {id}\n"));
    for (name, mode) in [
        (".flexvol-pool", 0o600),
        ("volumes", 0o700),
        ("names", 0o700),
    ] {
        let found = fs::metadata(path.join(name)).unwrap().permissions().mode();
        assert_eq!(found & 0o7777, mode, "{name}");
    }

    fs::remove_dir(path.join("names")).unwrap();
    fs::remove_dir(path.join("volumes")).unwrap();
    assert_eq!(
        Pool::open(&path).unwrap_err().kind(),
        ErrorKind::Configuration
    );
    assert_eq!(Pool::init(&path).unwrap(), (id, false));
    for (version, says) in [(1, "older flexvol"), (3, "newer flexvol")] {
        let text = format!("flexvol-pool {version} {id}\n");
        fs::write(path.join(".flexvol-pool"), text).unwrap();
        for refused in [Pool::open(&path).map(drop), Pool::init(&path).map(drop)] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration);
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    // Concurrently: one thread makes it, and all get the same pool.
    let path = bench.directory("contended");
    let made: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|_| scope.spawn(|| Pool::init(&path).unwrap()))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(made.iter().filter(|(_, created)| *created).count(), 1);
    assert_eq!(
        made.iter().map(|(id, _)| id).collect::<HashSet<_>>().len(),
        1
    );
}

fn not_private(points: &Points) {
    for inside in ["", "volumes", "names"] {
        let (bench, pool) = small();
        let root = bench.path("tested");
        let path = root.join(inside);
        let name = VolumeName::parse("a").unwrap();
        let refused = || match Pool::open(&root) {
            Ok(pool) => pool.lookup_name(&name).unwrap_err(),
            Err(error) => error,
        };
        let modes: &[u32] = if inside.is_empty() {
            &[0o770, 0o707]
        } else {
            &[0o750, 0o701]
        };
        for &mode in modes {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(
                refused().kind(),
                ErrorKind::Configuration,
                "{inside} {mode:o}"
            );
            points.add(1);
        }
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        chown(&path, Some(1000), None).unwrap();
        assert_eq!(refused().kind(), ErrorKind::Configuration, "{inside}");
        chown(&path, Some(0), None).unwrap();
        assert_eq!(Pool::open(&root).unwrap().lookup_name(&name).unwrap(), None);
        drop(pool);
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        Pool::init(&root).unwrap();
        assert_eq!(Pool::open(&root).unwrap().lookup_name(&name).unwrap(), None);
    }
    let (bench, _pool) = small();
    let moved = bench.path("elsewhere");
    fs::rename(bench.path("tested/volumes"), &moved).unwrap();
    symlink(&moved, bench.path("tested/volumes")).unwrap();
    let error = Pool::open(&bench.path("tested")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
}

fn names(points: &Points) {
    let (bench, pool) = small();
    let name = VolumeName::parse("pvc-1.example").unwrap();
    assert_eq!(pool.lookup_name(&name).unwrap(), None);
    let got: HashSet<Handle> = thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|_| {
                scope.spawn(|| {
                    let handle = Handle::random().unwrap();
                    pool.reserve_name(&name, &handle).unwrap()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(got.len(), 1);
    points.add(16);
    let owner = *got.iter().next().unwrap();
    assert_eq!(pool.lookup_name(&name).unwrap(), Some(owner));
    pool.release_name(&name, &any_volume()).unwrap();
    assert_eq!(pool.lookup_name(&name).unwrap(), Some(owner));

    let longest =
        VolumeName::parse(&["a".repeat(63), "b".repeat(63), "c".repeat(63)].join(".")).unwrap();
    let other = Handle::random().unwrap();
    assert_eq!(pool.reserve_name(&longest, &other).unwrap(), other);
    fs::create_dir(bench.path("tested/names/directory")).unwrap();
    symlink(other.to_string(), bench.path("tested/names/NOT-A-NAME")).unwrap();
    let listed: HashSet<_> = pool.names().unwrap().into_iter().collect();
    assert_eq!(
        listed,
        HashSet::from([(name.clone(), owner), (longest, other)])
    );

    for _ in 0..2 {
        pool.release_name(&name, &VolumeId::of(&owner)).unwrap();
        assert_eq!(pool.lookup_name(&name).unwrap(), None);
    }
    for (text, make) in [("nowhere", true), ("not a link", false)] {
        let name = VolumeName::parse(&text.replace(' ', "-")).unwrap();
        let path = bench.path("tested/names").join(name.as_str());
        match make {
            true => symlink(text, &path).unwrap(),
            false => File::create(&path).unwrap().write_all(b"x").unwrap(),
        }
        assert!(pool.lookup_name(&name).is_err());
        assert!(pool.reserve_name(&name, &owner).is_err());
        points.add(1);
    }
}
