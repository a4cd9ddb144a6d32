//! Pools, on file systems of their own that can be filled.

pub mod space;

use crate::{
    bench::{Bench, mount},
    host_lock::any_volume,
};
use flexvol_host::{
    VolumeId,
    pool::{Allocation, Image, Pool, Reserve},
    random,
};
use flexvol_sdk::{Bytes, ErrorKind, Filesystem, Handle, VolumeName};
use flexvol_testing::{Need, Points, Test};
use nix::{mount::MsFlags, sys::stat::Mode, unistd::mkfifo};
use space::{free, settles};
use std::{
    collections::HashSet,
    fs::{self, File, Permissions},
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

const E2FS: Need = Need::Tool("mkfs.ext4", "e2fsprogs");
const XFS: Need = Need::Tool("mkfs.xfs", "xfsprogs");
const BTRFS: Need = Need::Tool("mkfs.btrfs", "btrfs-progs");

pub const TESTS: &[Test] = &[
    Test {
        name: "a pool is made once, completed when half made, and told from an empty directory",
        needs: &[Need::Root],
        run: made,
    },
    Test {
        name: "a pool that others than root can change is refused",
        needs: &[Need::Root],
        run: not_private,
    },
    Test {
        name: "a volume's image appears whole, is found by its inode, and goes",
        needs: &[Need::Root, E2FS, XFS, BTRFS],
        run: created,
    },
    Test {
        name: "only a plain file of root's with one name is an image",
        needs: &[Need::Root],
        run: not_an_image,
    },
    Test {
        name: "an image that is swapped with a link is never followed",
        needs: &[Need::Root],
        run: swapped,
    },
    Test {
        name: "an image that its owner opens while it is taken over is given back to him",
        needs: &[Need::Root],
        run: opened_meanwhile,
    },
    Test {
        name: "a name has one volume, whoever asks first",
        needs: &[Need::Root],
        run: names,
    },
];

const MIB: u64 = 1 << 20;
const NO_RESERVE: Reserve = Reserve::Percent(0);

fn bytes(mebibytes: u64) -> Bytes {
    Bytes(mebibytes * MIB)
}

/// A pool in memory.
fn small() -> (Bench, Pool) {
    let bench = Bench::new();
    let path = bench.directory("tested");
    Pool::init(&path).unwrap();
    let pool = Pool::open(&path).unwrap();
    (bench, pool)
}

/// A pool on a file system of its own.
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

fn opened_meanwhile(_: &Points) {
    let (bench, pool) = small();
    let (path, volume) = (bench.path("stray"), any_volume());
    fs::write(&path, vec![0; 1 << 20]).unwrap();
    chown(&path, Some(12345), Some(54321)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    let stray = || pool.stray(&path).unwrap().unwrap();
    let found = stray();
    let opened = File::options().write(true).open(&path).unwrap();
    let error = pool
        .take(found, &volume, "mark", Allocation::Full, NO_RESERVE)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let metadata = fs::metadata(&path).unwrap();
    let owner = (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777);
    assert_eq!(owner, (12345, 54321, 0o640));
    assert!(!file_of(&bench, &volume).exists());
    drop(opened);
    pool.take(stray(), &volume, "mark", Allocation::Full, NO_RESERVE)
        .unwrap();
    assert_eq!(fs::metadata(file_of(&bench, &volume)).unwrap().uid(), 0);
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

    // Cut after the first step.
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

    // At once: one makes it, all get the same.
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
            assert_eq!(refused().kind(), ErrorKind::Denied, "{inside} {mode:o}");
            points.add(1);
        }
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        chown(&path, Some(1000), None).unwrap();
        assert_eq!(refused().kind(), ErrorKind::Denied, "{inside}");
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

fn created(points: &Points) {
    for filesystem in Filesystem::ALL {
        if filesystem == Filesystem::Ext3 {
            continue;
        }
        let (bench, pool) = on_disk(filesystem, 400);
        let before = free(&pool, &bench);
        let (full, thin) = (any_volume(), any_volume());
        for (volume, allocation) in [(&full, Allocation::Full), (&thin, Allocation::Thin)] {
            assert!(pool.image(volume).unwrap().is_none());
            pool.create(volume, bytes(64), "the mark", allocation, NO_RESERVE)
                .unwrap();
            let image = image(&pool, volume);
            assert_eq!(image.size().unwrap(), bytes(64));
            assert_eq!(image.mark().unwrap().as_deref(), Some("the mark"));
            let metadata = image.file().metadata().unwrap();
            assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
            let allocated = metadata.blocks() * 512;
            match allocation {
                Allocation::Full => assert!(allocated >= 64 * MIB, "{allocated}"),
                Allocation::Thin => assert!(allocated < MIB, "{allocated}"),
            }

            let flags = rustix::fs::ioctl_getflags(image.file()).unwrap();
            let in_place = filesystem == Filesystem::Btrfs && allocation == Allocation::Full;
            assert_eq!(flags.contains(rustix::fs::IFlags::NOCOW), in_place);

            image.set_mark("another").unwrap();
            let error = pool
                .create(volume, bytes(1), "late", allocation, NO_RESERVE)
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict);
            assert_eq!(image.mark().unwrap().as_deref(), Some("another"));
            points.add(1);
        }
        fs::write(bench.path("tested/volumes/lost+found"), "").unwrap();
        let volumes: HashSet<_> = pool.volume_ids().unwrap().into_iter().collect();
        assert_eq!(volumes, HashSet::from([full, thin]));
        fs::remove_file(bench.path("tested/volumes/lost+found")).unwrap();

        for volume in [&full, &thin, &full] {
            pool.remove(volume).unwrap();
            assert!(pool.image(volume).unwrap().is_none());
        }
        assert_eq!(pool.volume_ids().unwrap(), []);
        settles(&pool, &bench, before);
    }
}

fn not_an_image(points: &Points) {
    let (bench, pool) = small();
    let outside = bench.path("outside");
    fs::write(&outside, "secret").unwrap();
    type Case<'a> = (&'a str, &'a dyn Fn(&Path));
    let cases: [Case; 9] = [
        ("link", &|path| symlink(&outside, path).unwrap()),
        ("dangling link", &|path| symlink("nowhere", path).unwrap()),
        ("magic link", &|path| {
            symlink("/proc/self/exe", path).unwrap()
        }),
        ("hard link", &|path| fs::hard_link(&outside, path).unwrap()),
        ("directory", &|path| fs::create_dir(path).unwrap()),
        ("fifo", &|path| mkfifo(path, Mode::S_IRWXU).unwrap()),
        ("writable file", &|path| {
            File::create(path).unwrap();
            fs::set_permissions(path, Permissions::from_mode(0o602)).unwrap();
        }),
        ("somebody's file", &|path| {
            File::create(path).unwrap();
            chown(path, Some(1000), None).unwrap();
        }),
        ("mounted file", &|path| {
            File::create(path).unwrap();
            let bind = MsFlags::MS_BIND;
            let proc = Some("/proc/version");
            nix::mount::mount(proc, path, None::<&str>, bind, None::<&str>).unwrap();
        }),
    ];
    for (what, make) in cases {
        let volume = any_volume();
        make(&file_of(&bench, &volume));
        let error = pool.image(&volume).unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::Conflict,
            "{what}: {}",
            error.report()
        );
        assert!(!error.to_string().contains(&volume.to_string()));
        points.add(1);
    }
    assert_eq!(fs::read_to_string(outside).unwrap(), "secret");
}

fn swapped(points: &Points) {
    const ROUNDS: u64 = 5000;
    let (bench, pool) = small();
    let volume = any_volume();
    pool.create(&volume, bytes(1), "", Allocation::Thin, NO_RESERVE)
        .unwrap();
    let inode = image(&pool, &volume).inode();
    let outside = bench.path("outside");
    fs::write(&outside, "secret").unwrap();
    let (path, link) = (file_of(&bench, &volume), bench.path("tested/volumes/link"));
    symlink(&outside, &link).unwrap();
    let done = AtomicBool::new(false);
    let (mut opened, mut refused) = (0_u64, 0_u64);
    thread::scope(|scope| {
        let (path, link, done) = (&path, &link, &done);
        scope.spawn(move || {
            let here = nix::fcntl::AT_FDCWD;
            let exchange = nix::fcntl::RenameFlags::RENAME_EXCHANGE;
            while !done.load(Ordering::Relaxed) {
                nix::fcntl::renameat2(here, path, here, link, exchange).unwrap();
            }
        });
        for _ in 0..ROUNDS {
            match pool.image(&volume) {
                Ok(Some(image)) => {
                    assert_eq!(image.inode(), inode);
                    opened += 1;
                }
                Ok(None) => panic!("an exchange leaves no gap"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Conflict);
                    refused += 1;
                }
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(
        opened > 0 && refused > 0,
        "{opened} opened, {refused} refused"
    );
    points.add(ROUNDS);
}

fn names(points: &Points) {
    let (bench, pool) = small();
    let name = VolumeName::parse("pvc-1.example").unwrap();
    assert_eq!(pool.lookup_name(&name).unwrap(), None);
    let got: HashSet<Handle> = thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|_| {
                scope.spawn(|| {
                    let handle = random::handle().unwrap();
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
    let other = random::handle().unwrap();
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
