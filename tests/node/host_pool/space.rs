//! Space that a pool gives, and that it refuses.

use super::{BTRFS, E2FS, MIB, NO_RESERVE, XFS, bytes, file_of, image, on_disk};
use crate::{bench::Bench, copied::copy, host_lock::any_volume};
use flexvol_host::pool::{Allocation, Pool, Reserve};
use flexvol_sdk::{Bytes, ErrorKind, Filesystem};
use flexvol_testing::{Need, Points, tests};
use nix::fcntl::{FallocateFlags, fallocate};
use std::{
    fs::File,
    os::unix::fs::{FileExt, MetadataExt},
    thread,
    time::{Duration, Instant},
};

tests! {
    "a volume that does not fit leaves the pool as it was and neighbours writing", &[Need::Root, E2FS, XFS]
        => full;
    "an extension that does not fit leaves the image as it was", &[Need::Root, E2FS, XFS, BTRFS]
        => extension_fails;
    "an extension is finished after a cut and gives back what a trim took", &[Need::Root, E2FS, XFS]
        => extension_heals;
    "an extension gives an image what it shares with a copy, and no room that there is not", &[Need::Root, XFS]
        => extension_parts;
    "volumes made at once share what the pool has and no more", &[Need::Root, E2FS] => crowd;
}

/// Free space after the file system has settled.
pub(super) fn free(pool: &Pool, bench: &Bench) -> Bytes {
    let root = File::open(bench.path("tested")).unwrap();
    nix::unistd::syncfs(&root).unwrap();
    pool.space().unwrap().free
}

/// Waits until the space of deleted files is free, which happens in the background.
pub(super) fn settles(pool: &Pool, bench: &Bench, before: Bytes) {
    let end = Instant::now() + Duration::from_secs(20);
    while free(pool, bench).0 + MIB <= before.0 {
        assert!(Instant::now() < end, "{before} were free");
        thread::sleep(Duration::from_millis(20));
    }
}

fn full(points: &Points) {
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs] {
        let (bench, pool) = on_disk(filesystem, 400);
        let neighbour = any_volume();
        pool.create(&neighbour, bytes(32), "", Allocation::Full, NO_RESERVE)
            .unwrap();
        let before = free(&pool, &bench);
        let size = pool.space().unwrap().size;
        let reserve = Reserve::Bytes(Bytes(before.0 - 20 * MIB));
        let available = pool.available(reserve, Allocation::Full).unwrap();
        assert_eq!(available, bytes(20));
        for (wanted, reserve) in [
            (bytes(1024), NO_RESERVE),
            (size, Reserve::Percent(15)),
            (bytes(21), reserve),
            (Bytes(u64::MAX), NO_RESERVE),
            // Passes the check, but the image's block map needs space too.
            (Bytes(before.0 / MIB * MIB), NO_RESERVE),
            (bytes(1), Reserve::Percent(100)),
        ] {
            let error = pool
                .create(&any_volume(), wanted, "", Allocation::Full, reserve)
                .err();
            if let Some(error) = error {
                assert_eq!(
                    error.kind(),
                    ErrorKind::Exhausted,
                    "{filesystem} {wanted}: {error}"
                );
            } else {
                // It fitted, to the last block.
                assert_eq!(wanted, Bytes(before.0 / MIB * MIB));
                for volume in pool.volume_ids().unwrap() {
                    if volume != neighbour {
                        pool.remove(&volume).unwrap();
                    }
                }
            }
            assert_eq!(pool.volume_ids().unwrap(), [neighbour]);
            settles(&pool, &bench, before);
            let neighbour = image(&pool, &neighbour);
            neighbour
                .reopen()
                .unwrap()
                .write_all_at(&[7; 1 << 16], MIB)
                .unwrap();
            neighbour.file().sync_all().unwrap();
            points.add(1);
        }
        let percent = Reserve::Percent(100);
        let error = pool
            .create(&any_volume(), bytes(1), "", Allocation::Thin, percent)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        pool.create(&any_volume(), bytes(20), "", Allocation::Full, reserve)
            .unwrap();
    }
}

fn extension_fails(points: &Points) {
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs] {
        let (bench, pool) = on_disk(filesystem, 400);
        let volume = any_volume();
        pool.create(&volume, bytes(32), "", Allocation::Full, NO_RESERVE)
            .unwrap();
        let image = image(&pool, &volume);
        image
            .reopen()
            .unwrap()
            .write_all_at(b"content", 31 * MIB)
            .unwrap();
        let before = free(&pool, &bench);
        let unchanged = |what: &str| {
            assert_eq!(image.size().unwrap(), bytes(32), "{filesystem} {what}");
            settles(&pool, &bench, before);
            let mut content = [0; 7];
            image.file().read_exact_at(&mut content, 31 * MIB).unwrap();
            assert_eq!(&content, b"content");
            points.add(1);
        };
        for (to, reserve) in [
            (bytes(1024), NO_RESERVE),
            (bytes(64), Reserve::Percent(100)),
            (Bytes(u64::MAX), NO_RESERVE),
        ] {
            let error = image
                .extend(to, Allocation::Full, reserve, &pool)
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
            unchanged("refused");
        }
        if filesystem == Filesystem::Btrfs {
            continue;
        }
        // A refusal by the kernel half-way, as when other data takes the space between check and use. The size of
        // an unwritten file says nothing about its blocks, so this one passes the check at the edge.
        let edge = Bytes(before.0 / MIB * MIB + 32 * MIB);
        match image.extend(edge, Allocation::Full, NO_RESERVE, &pool) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
                unchanged("failed");
            }
            Ok(()) => assert_eq!(image.size().unwrap(), edge),
        }
    }
}

fn extension_heals(points: &Points) {
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs] {
        let (bench, pool) = on_disk(filesystem, 400);
        let volume = any_volume();
        pool.create(&volume, bytes(32), "", Allocation::Full, NO_RESERVE)
            .unwrap();
        let image = image(&pool, &volume);
        let allocated = || image.file().metadata().unwrap().blocks() * 512;
        // Interrupted between allocating the blocks and extending the file. The retry needs no more space.
        let keep = FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(image.reopen().unwrap(), keep, 0, 200 << 20).unwrap();
        let left = Reserve::Bytes(free(&pool, &bench));
        image
            .extend(bytes(200), Allocation::Full, left, &pool)
            .unwrap();
        assert_eq!(image.size().unwrap(), bytes(200));
        points.add(1);
        // The same or a smaller size changes nothing.
        for to in [200, 100, 0] {
            image
                .extend(bytes(to), Allocation::Full, left, &pool)
                .unwrap();
            assert_eq!(image.size().unwrap(), bytes(200));
        }
        // Discarded from inside.
        image
            .reopen()
            .unwrap()
            .write_all_at(b"content", MIB)
            .unwrap();
        let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | keep;
        fallocate(image.reopen().unwrap(), punch, 2 << 20, 100 << 20).unwrap();
        assert!(allocated() < 101 * MIB);
        image
            .extend(bytes(200), Allocation::Full, NO_RESERVE, &pool)
            .unwrap();
        assert!(allocated() >= 200 * MIB);
        let mut content = [0; 7];
        image.file().read_exact_at(&mut content, MIB).unwrap();
        assert_eq!(&content, b"content");
        points.add(1);
        // A thin image gets a size and no blocks.
        let before = allocated();
        image
            .extend(bytes(4000), Allocation::Thin, NO_RESERVE, &pool)
            .unwrap();
        assert_eq!(image.size().unwrap(), bytes(4000));
        assert!(allocated() <= before + MIB);
        points.add(1);
    }
}

fn extension_parts(_: &Points) {
    let (bench, pool) = on_disk(Filesystem::Xfs, 400);
    let volume = any_volume();
    pool.create(&volume, bytes(32), "", Allocation::Full, NO_RESERVE)
        .unwrap();
    let image = image(&pool, &volume);
    let content = vec![7; 16 << 20];
    image.reopen().unwrap().write_all_at(&content, MIB).unwrap();
    image.file().sync_all().unwrap();
    assert_eq!(pool.shortfall().unwrap().bytes, bytes(0));
    copy(&file_of(&bench, &volume), &bench.path("tested/copy"));
    assert_eq!(pool.shortfall().unwrap().bytes, bytes(16));
    let before = free(&pool, &bench);
    let room = |mebibytes| Reserve::Bytes(Bytes(before.0 - mebibytes * MIB));
    // Enough space for the extension, but not for the blocks that it also lacks.
    let extended = image.extend(bytes(48), Allocation::Full, room(20), &pool);
    assert!(extended.is_err());
    assert_eq!(image.size().unwrap(), bytes(32));
    image
        .extend(bytes(48), Allocation::Full, room(36), &pool)
        .unwrap();
    assert_eq!(image.size().unwrap(), bytes(48));
    assert_eq!(pool.shortfall().unwrap().bytes, bytes(0));
    assert!(free(&pool, &bench).0 <= before.0 - 32 * MIB);
    let mut found = vec![0; content.len()];
    image.file().read_exact_at(&mut found, MIB).unwrap();
    assert!(found == content);
}

fn crowd(points: &Points) {
    let (bench, pool) = on_disk(Filesystem::Ext4, 400);
    let free = free(&pool, &bench);
    let reserve = Reserve::Bytes(Bytes(free.0 - 100 * MIB));
    let root = bench.path("tested");
    let made: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|_| {
                scope.spawn(|| {
                    // A pool object for each thread, as for processes.
                    let pool = Pool::open(&root).unwrap();
                    match pool.create(&any_volume(), bytes(15), "", Allocation::Full, reserve) {
                        Ok(()) => 1,
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Exhausted);
                            0
                        }
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(made, 6, "100 MiB hold six times 15 MiB");
    assert_eq!(pool.volume_ids().unwrap().len(), 6);
    points.add(16);
}
