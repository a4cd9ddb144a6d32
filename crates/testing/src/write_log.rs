//! What a disk held when the power went: from the log of everything that was written to it.
//!
//! The log is that of the kernel's `dm-log-writes` (Documentation/admin-guide/device-mapper/
//! log-writes.rst), which qemu's `blklogwrites` writes too. A write is on the disk for certain once a
//! flush came after it, or if it was itself forced (`FUA`). Of all others a power cut may leave any
//! subset, and of the sectors of one write any too; a sector is whole or not written at all.

use crate::Random;
use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// One thing that was done to the disk; in bytes.
#[derive(Clone, Copy, Debug)]
struct Entry {
    flags: u64,
    to: u64,
    length: u64,
    /// Where its data stands in the log.
    data: u64,
}

impl Entry {
    fn is(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }
}

/// The log of one disk.
#[derive(Debug)]
pub struct WriteLog {
    file: File,
    sector: u64,
    entries: Vec<Entry>,
}

impl WriteLog {
    /// Reads the entries of a log; their data stays in the file.
    ///
    /// # Errors
    /// When it is no such log, or cut within an entry.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut head = [0; 28];
        file.read_exact_at(&mut head, 0)?;
        let [magic, version, count] = [0, 8, 16].map(|at| word(&head, at));
        let sector = word(&[&head[24..28], &[0; 4]].concat(), 0);
        if (magic, version) != (MAGIC, 1) || !(512..=4096).contains(&sector) {
            return Err(io::Error::other("not a log of writes of version 1"));
        }
        let (mut entries, mut at) = (Vec::new(), sector);
        for _ in 0..count {
            let mut head = [0; 32];
            file.read_exact_at(&mut head, at)?;
            let [to, sectors, flags, extra] = [0, 8, 16, 24].map(|at| word(&head, at));
            let length_in_log = match flags {
                flags if flags & MARK != 0 => extra.next_multiple_of(sector),
                flags if flags & DISCARD != 0 => 0,
                _ => sectors * sector,
            };
            entries.push(Entry {
                flags,
                to: to * sector,
                length: sectors * sector,
                data: at + sector,
            });
            at += sector + length_in_log;
            if at > length {
                return Err(io::Error::other("the log ends within an entry"));
            }
        }
        Ok(WriteLog {
            file,
            sector,
            entries,
        })
    }

    /// How many entries there are: so many points at which the power may go, each after one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing was ever done to the disk.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The first write that touches this byte of the disk.
    #[must_use]
    pub fn first_write_to(&self, byte: u64) -> Option<usize> {
        self.entries.iter().position(|entry| {
            !entry.is(MARK) && (entry.to..entry.to + entry.length).contains(&byte)
        })
    }

    /// Whether the disk is another after this many entries than after one less.
    #[must_use]
    pub fn changes_at(&self, count: usize) -> bool {
        let last = count.checked_sub(1).and_then(|last| self.entries.get(last));
        last.is_some_and(|entry| !entry.is(MARK) && entry.length > 0)
    }

    /// Does one entry to an image, as far as `keep` has its sectors, which are counted from its
    /// first one. Zeros become holes.
    fn replay(
        &self,
        entry: &Entry,
        image: &File,
        mut keep: impl FnMut() -> bool,
    ) -> io::Result<()> {
        if entry.is(MARK) || entry.length == 0 {
            return Ok(());
        }
        let mut data = Vec::new();
        if !entry.is(DISCARD) {
            data.resize(usize::try_from(entry.length).map_err(io::Error::other)?, 0);
            self.file.read_exact_at(&mut data, entry.data)?;
        }
        // Runs of sectors that are treated alike are written at once.
        let sector = usize::try_from(self.sector).map_err(io::Error::other)?;
        let mut run: Option<(Fate, u64, u64)> = None;
        for at in (0..entry.length).step_by(sector) {
            let start = usize::try_from(at).map_err(io::Error::other)?;
            let fate = match (keep(), data.get(start..start + sector)) {
                (false, _) => Fate::Lost,
                (true, Some(bytes)) if bytes.iter().any(|byte| *byte != 0) => Fate::Written,
                (true, _) => Fate::Zero,
            };
            match &mut run {
                Some((same, _, end)) if *same == fate => *end = at + self.sector,
                _ => {
                    finish(run, entry, &data, image)?;
                    run = Some((fate, at, at + self.sector));
                }
            }
        }
        finish(run, entry, &data, image)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Lost,
    Zero,
    Written,
}

fn finish(
    run: Option<(Fate, u64, u64)>,
    entry: &Entry,
    data: &[u8],
    image: &File,
) -> io::Result<()> {
    let Some((fate, from, to)) = run else {
        return Ok(());
    };
    match fate {
        Fate::Lost => Ok(()),
        Fate::Zero => punch(image, entry.to + from, to - from),
        Fate::Written => {
            let [from_byte, to_byte] = [from, to].map(usize::try_from);
            let bytes = from_byte.map_err(io::Error::other)?..to_byte.map_err(io::Error::other)?;
            image.write_all_at(&data[bytes], entry.to + from)
        }
    }
}

fn punch(image: &File, from: u64, length: u64) -> io::Result<()> {
    use nix::fcntl::{FallocateFlags, fallocate};
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let [from, length] = [from, length].map(i64::try_from);
    let (from, length) = (
        from.map_err(io::Error::other)?,
        length.map_err(io::Error::other)?,
    );
    Ok(fallocate(image, flags, from, length)?)
}

/// Goes through a log from its beginning and makes the disk as it may have been after each entry.
#[derive(Debug)]
pub struct Replay<'a> {
    log: &'a WriteLog,
    /// What is on the disk for certain.
    durable: File,
    /// The next entry.
    next: usize,
    /// Entries that may still be lost.
    pending: Vec<usize>,
}

impl<'a> Replay<'a> {
    /// Begins with an empty disk in `durable`, an empty file that has the disk's size.
    #[must_use]
    pub fn new(log: &'a WriteLog, durable: File) -> Self {
        Replay {
            log,
            durable,
            next: 0,
            pending: Vec::new(),
        }
    }

    /// Goes on until `count` entries were done.
    ///
    /// # Errors
    /// When the log cannot be read or the image not be written.
    pub fn advance(&mut self, count: usize) -> io::Result<()> {
        while self.next < count.min(self.log.entries.len()) {
            let entry = &self.log.entries[self.next];
            if entry.is(FLUSH) {
                for pending in self.pending.drain(..) {
                    let entry = &self.log.entries[pending];
                    self.log.replay(entry, &self.durable, || true)?;
                }
            }
            // A forced write waits here too: what it lies over must not come out on top later.
            if entry.length > 0 {
                self.pending.push(self.next);
            }
            self.next += 1;
        }
        Ok(())
    }

    /// How many writes may be lost now.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// What is on the disk for certain; the image of a cut is a copy of it and what one of
    /// [`Replay::all`] and [`Replay::some`] adds.
    #[must_use]
    pub fn durable(&self) -> &File {
        &self.durable
    }

    /// Adds all that was written since.
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

    /// Adds a part of what was written since: of two writes one, and of ten of those one in part.
    /// What was forced is there.
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

fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes[at..at + 8].try_into().expect("eight bytes");
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A log of entries: flags, first sector, and the byte that each of its sectors is full of.
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

    /// The byte of each sector of a disk of eight.
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
    fn what_is_no_log_or_cut_is_refused() {
        let file = log(ENTRIES);
        let length = file.as_file().metadata().expect("stat").len();
        file.as_file().set_len(length - 512).expect("cut");
        assert!(WriteLog::open(file.path()).is_err());
        file.as_file().write_all_at(b"x", 0).expect("spoil");
        assert!(WriteLog::open(file.path()).is_err());
    }
}
