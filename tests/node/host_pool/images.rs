//! The images of a pool: recognizing, making and removing them.

use super::{
    BTRFS, E2FS, MIB, NO_RESERVE, XFS, bytes, file_of, image, on_disk, small,
    space::{free, settles},
};
use crate::{frozen::Frozen, host_lock::any_volume};
use flexvol_host::pool::Allocation;
use flexvol_sdk::{ErrorKind, Filesystem};
use flexvol_testing::{Need, Points, patience, tests};
use nix::{mount::MsFlags, sys::stat::Mode, unistd::mkfifo};
use std::{
    collections::HashSet,
    fs::{self, File, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    path::Path,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

tests! {
    "a volume's image appears whole, is found by its inode, and goes", &[Need::Root, E2FS, XFS, BTRFS]
        => created;
    "only a plain file of root's with one name is an image", &[Need::Root] => not_an_image;
    "an image that is swapped with a link is never followed", &[Need::Root] => swapped;
    "an image is looked for, and read, while its file system is frozen", &[Need::Root, E2FS, Need::Tool("fsfreeze", "util-linux")]
        => frozen;
    "an image that its owner opens while it is taken over is given back to him", &[Need::Root]
        => opened_meanwhile;
}

fn frozen(points: &Points) {
    let (bench, pool) = on_disk(Filesystem::Ext4, 64);
    let [there, gone] = [any_volume(), any_volume()];
    pool.create(&there, bytes(1), "mark", Allocation::Thin, NO_RESERVE)
        .unwrap();
    let thaws = Frozen::new(&bench.path("mounted"));
    let (told, tells) = mpsc::channel();
    let looks = thread::spawn(move || {
        let look = |volume| pool.image(volume).unwrap();
        assert!(look(&gone).is_none());
        let found = look(&there).unwrap();
        let seen = (found.mark().unwrap().unwrap(), found.size().unwrap());
        told.send(seen).unwrap();
    });
    let seen = tells.recv_timeout(Duration::from_secs(3) * patience());
    // Nobody can be ended before.
    drop(thaws);
    looks.join().unwrap();
    assert_eq!(seen, Ok(("mark".to_owned(), bytes(1))));
    points.add(2);
}

fn opened_meanwhile(_: &Points) {
    let (bench, pool) = small();
    let (path, volume) = (bench.path("stray"), any_volume());
    fs::write(&path, vec![0; 1 << 20]).unwrap();
    chown(&path, Some(12345), Some(54321)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    let candidate = || {
        pool.adoption_candidate(&path, |_| Ok(true))
            .unwrap()
            .unwrap()
    };
    let found = candidate();
    let opened = File::options().write(true).open(&path).unwrap();
    let error = pool
        .adopt(found, &volume, "mark", Allocation::Full, NO_RESERVE)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let metadata = fs::metadata(&path).unwrap();
    let owner = (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777);
    assert_eq!(owner, (12345, 54321, 0o640));
    assert!(!file_of(&bench, &volume).exists());
    drop(opened);
    pool.adopt(candidate(), &volume, "mark", Allocation::Full, NO_RESERVE)
        .unwrap();
    assert_eq!(fs::metadata(file_of(&bench, &volume)).unwrap().uid(), 0);
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
