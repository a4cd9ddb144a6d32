//! Possible disk contents after a power cut at any entry of a log.

use super::{DISCARD, FLUSH, FUA, WriteLog};
use crate::Random;
use std::{fs::File, io, ops::Range};

/// Replays a log from its beginning and produces the possible disk contents after each entry.
#[derive(Debug)]
pub struct Replay<'a> {
    log: &'a WriteLog,
    /// Image of the durable data.
    durable: File,
    /// Index of the next entry.
    next: usize,
    /// Entries that may still be lost.
    pending: Vec<usize>,
}

impl<'a> Replay<'a> {
    /// Begins with an empty disk. `durable` must be an empty file of the disk's size.
    #[must_use]
    pub fn new(log: &'a WriteLog, durable: File) -> Self {
        Replay {
            log,
            durable,
            next: 0,
            pending: Vec::new(),
        }
    }

    /// Replays entries until `count` are done.
    ///
    /// # Errors
    /// When the log is unreadable or the image cannot be written.
    pub fn advance(&mut self, count: usize) -> io::Result<()> {
        while self.next < count.min(self.log.entries.len()) {
            let entry = &self.log.entries[self.next];
            if entry.is(FLUSH) {
                for pending in self.pending.drain(..) {
                    let entry = &self.log.entries[pending];
                    self.log.replay(entry, &self.durable, || true)?;
                }
            }
            // A forced write is pending too, so that an earlier write to the same place does not overwrite it later.
            if entry.length > 0 {
                self.pending.push(self.next);
            }
            self.next += 1;
        }
        Ok(())
    }

    /// Returns the number of writes that may be lost now.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Returns the image of the durable data. The disk after a power cut is a copy of it, completed by [`Replay::all`]
    /// or [`Replay::some`].
    #[must_use]
    pub fn durable(&self) -> &File {
        &self.durable
    }

    /// Adds all pending writes.
    ///
    /// # Errors
    /// As for [`Replay::advance`].
    pub fn all(&self, image: &File) -> io::Result<()> {
        for pending in &self.pending {
            self.log
                .replay(&self.log.entries[*pending], image, || true)?;
        }
        Ok(())
    }

    /// Adds all pending writes except for one sector, in the last write that `find` accepts. `find` gets offset and
    /// data of a write, and returns the sector's offset in it. Returns `false` if no write is accepted.
    ///
    /// # Errors
    /// As for [`Replay::advance`].
    pub fn all_but_a_sector(
        &self,
        image: &File,
        find: impl Fn(u64, &[u8]) -> Option<u64>,
    ) -> io::Result<bool> {
        let mut lost = None;
        for pending in self.pending.iter().rev() {
            let entry = &self.log.entries[*pending];
            // A forced write is complete.
            if lost.is_none() && !entry.is(FUA | DISCARD) {
                let found = find(entry.to, &self.log.data(entry)?);
                lost = found.map(|from| (*pending, from / self.log.sector));
            }
        }
        for pending in &self.pending {
            let mut at = 0..;
            let entry = &self.log.entries[*pending];
            self.log
                .replay(entry, image, || lost != at.next().map(|at| (*pending, at)))?;
        }
        Ok(lost.is_some())
    }

    /// Adds all pending writes except for what they have in this range of the disk. Returns `false` if they have nothing
    /// there.
    ///
    /// # Errors
    /// As for [`Replay::advance`].
    pub fn all_but_range(&self, image: &File, lost: &Range<u64>) -> io::Result<bool> {
        let mut has_lost = false;
        for pending in &self.pending {
            let entry = &self.log.entries[*pending];
            let mut sectors =
                (entry.to..).step_by(usize::try_from(self.log.sector).map_err(io::Error::other)?);
            self.log.replay(entry, image, || {
                let at = sectors.next();
                // A forced write is complete.
                let is_lost = !entry.is(FUA) && at.is_some_and(|at| lost.contains(&at));
                has_lost |= is_lost;
                !is_lost
            })?;
        }
        Ok(has_lost)
    }

    /// Adds about half of the pending writes, and a tenth of these only in part. Forced writes are always added.
    ///
    /// # Errors
    /// As for [`Replay::advance`].
    pub fn some(&self, image: &File, random: &mut Random) -> io::Result<()> {
        for pending in &self.pending {
            let entry = &self.log.entries[*pending];
            if entry.is(FUA) {
                self.log.replay(entry, image, || true)?;
            } else if random.below(2) == 0 {
                let torn = random.below(10) == 0;
                self.log
                    .replay(entry, image, || !torn || random.below(2) == 0)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::MAGIC;
    use super::*;
    use std::{io::Write, os::unix::fs::FileExt};

    /// Builds a log. Entries have flags, first sector, and the byte that fills each of their sectors.
    fn log(entries: &[(u64, u64, &[u8])]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("make a log");
        let mut put = |words: &[u64]| {
            let mut sector = vec![0; 512];
            for (at, word) in words.iter().enumerate() {
                sector[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
            }
            file.write_all(&sector).expect("write a log");
        };
        let count = u64::try_from(entries.len()).expect("64 bits");
        put(&[MAGIC, 1, count, 512]);
        for (flags, to, sectors) in entries {
            put(&[
                *to,
                u64::try_from(sectors.len()).expect("64 bits"),
                *flags,
                0,
            ]);
            if flags & DISCARD == 0 {
                for byte in *sectors {
                    put(&[u64::from_le_bytes([*byte; 8]); 64]);
                }
            }
        }
        file
    }

    /// Returns the byte that fills each sector of a disk with eight sectors.
    fn sectors(disk: &File) -> [u8; 8] {
        std::array::from_fn(|at| {
            let mut sector = [0; 512];
            let offset = u64::try_from(at).expect("64 bits") * 512;
            disk.read_exact_at(&mut sector, offset)
                .expect("read a disk");
            assert!(
                sector.iter().all(|byte| *byte == sector[0]),
                "a torn sector"
            );
            sector[0]
        })
    }

    fn disk() -> File {
        let disk = tempfile::tempfile().expect("make a disk");
        disk.set_len(8 * 512).expect("size a disk");
        disk
    }

    const ENTRIES: &[(u64, u64, &[u8])] = &[
        (0, 0, &[1, 1, 1]),
        (FLUSH, 0, &[]),
        (0, 1, &[2, 0]),
        (FUA, 2, &[3]),
        (DISCARD, 0, &[0]),
        (0, 4, &[4, 4, 4, 4]),
    ];

    #[test]
    fn a_flush_makes_durable_what_came_before_it() {
        let file = log(ENTRIES);
        let log = WriteLog::open(file.path()).expect("read the log");
        assert_eq!(log.len(), 6);
        let mut replay = Replay::new(&log, disk());
        replay.advance(1).expect("replay");
        assert_eq!(sectors(replay.durable()), [0; 8]);
        replay.advance(6).expect("replay");
        assert_eq!(sectors(replay.durable()), [1, 1, 1, 0, 0, 0, 0, 0]);
        assert_eq!(replay.pending(), 4);
        replay.all(replay.durable()).expect("replay");
        assert_eq!(sectors(replay.durable()), [0, 2, 3, 0, 4, 4, 4, 4]);
    }

    #[test]
    fn whatever_a_cut_leaves_durable_and_forced_writes_are_there() {
        let file = log(ENTRIES);
        let log = WriteLog::open(file.path()).expect("read the log");
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..400 {
            let mut replay = Replay::new(&log, disk());
            replay.advance(6).expect("replay");
            let random = &mut Random::new(seed);
            replay.some(replay.durable(), random).expect("replay");
            let found = sectors(replay.durable());
            assert!(
                [0, 1].contains(&found[0]) && [1, 2].contains(&found[1]),
                "{found:?}"
            );
            assert_eq!((found[2], found[3]), (3, 0), "{found:?}");
            assert!(
                found[4..].iter().all(|byte| [0, 4].contains(byte)),
                "{found:?}"
            );
            seen.insert(found);
        }
        assert!(seen.contains(&[1, 1, 3, 0, 0, 0, 0, 0]), "nothing kept");
        assert!(seen.contains(&[0, 2, 3, 0, 4, 4, 4, 4]), "everything kept");
        let torn = |found: &[u8; 8]| found[4..].contains(&0) && found[4..].contains(&4);
        assert!(seen.iter().any(torn), "no write torn");
    }

    #[test]
    fn a_sector_of_the_last_write_that_is_meant_is_lost() {
        let file = log(ENTRIES);
        let log = WriteLog::open(file.path()).expect("read the log");
        let mut replay = Replay::new(&log, disk());
        replay.advance(6).expect("replay");
        let all_but = |find: &dyn Fn(u64, &[u8]) -> Option<u64>| {
            let disk = replay.durable().try_clone().expect("another handle");
            let found = replay.all_but_a_sector(&disk, find).expect("replay");
            (found, sectors(&disk))
        };
        let of_four = |to, data: &[u8]| (to == 2048 && data[0] == 4).then_some(1024);
        assert_eq!(all_but(&of_four), (true, [0, 2, 3, 0, 4, 4, 0, 4]));
        // Forced writes are never torn, nor is durable data.
        let of_three = |_: u64, data: &[u8]| (data[0] == 3).then_some(0);
        assert!(!all_but(&of_three).0);
        let of_one = |_: u64, data: &[u8]| (data[0] == 1).then_some(0);
        assert!(!all_but(&of_one).0);
    }

    #[test]
    fn what_is_no_log_or_cut_is_refused() {
        let file = log(ENTRIES);
        let length = file.as_file().metadata().expect("stat").len();
        file.as_file().set_len(length - 512).expect("cut");
        assert!(WriteLog::open(file.path()).is_err());
        file.as_file().write_all_at(b"x", 0).expect("spoil");
        assert!(WriteLog::open(file.path()).is_err());
    }
}
