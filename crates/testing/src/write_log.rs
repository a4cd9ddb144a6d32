//! Disk contents after a power cut, computed from a log of all writes.
//!
//! The log has the format of the kernel's `dm-log-writes` (Documentation/admin-guide/device-mapper/log-writes.rst),
//! which qemu's `blklogwrites` writes too. A write is durable once a later flush completed, or if the write itself was
//! forced (`FUA`). A power cut may leave any subset of the other writes, and any subset of the sectors of each. A
//! sector is written completely or not at all.

mod replay;

pub use replay::Replay;

use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// One operation on the disk; offsets and lengths in bytes.
#[derive(Clone, Copy, Debug)]
struct Entry {
    flags: u64,
    to: u64,
    length: u64,
    /// Offset of its data in the log.
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
    /// Reads the entries of a log; their data stay in the file.
    ///
    /// # Errors
    /// When the file is not such a log, or is truncated.
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

    /// Returns the number of entries. The power can be cut after each.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing was written to the disk.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the first write that touches this byte of the disk.
    #[must_use]
    pub fn first_write_to(&self, byte: u64) -> Option<usize> {
        self.entries.iter().position(|entry| {
            !entry.is(MARK) && (entry.to..entry.to + entry.length).contains(&byte)
        })
    }

    /// Returns the writes that `is_meant` accepts, given offset and data of each.
    ///
    /// # Errors
    /// When the log is unreadable.
    pub fn writes(&self, is_meant: impl Fn(u64, &[u8]) -> bool) -> io::Result<Vec<usize>> {
        let mut found = Vec::new();
        for (number, entry) in self.entries.iter().enumerate() {
            if !entry.is(MARK) && is_meant(entry.to, &self.data(entry)?) {
                found.push(number);
            }
        }
        Ok(found)
    }

    /// Returns the first flush after an entry, or the end.
    #[must_use]
    pub fn flush_after(&self, number: usize) -> usize {
        let mut later = number + 1..self.len();
        later
            .find(|later| self.entries[*later].is(FLUSH))
            .unwrap_or(self.len())
    }

    /// Whether the last of `count` entries changes the disk.
    #[must_use]
    pub fn changes_at(&self, count: usize) -> bool {
        let last = count.checked_sub(1).and_then(|last| self.entries.get(last));
        last.is_some_and(|entry| !entry.is(MARK) && entry.length > 0)
    }

    /// Returns the data of a write; empty for a discard.
    fn data(&self, entry: &Entry) -> io::Result<Vec<u8>> {
        let mut data = Vec::new();
        if !entry.is(DISCARD) {
            data.resize(usize::try_from(entry.length).map_err(io::Error::other)?, 0);
            self.file.read_exact_at(&mut data, entry.data)?;
        }
        Ok(data)
    }

    /// Applies one entry to an image. `keep` decides for each sector, in ascending order. Zeros become holes.
    fn replay(
        &self,
        entry: &Entry,
        image: &File,
        mut keep: impl FnMut() -> bool,
    ) -> io::Result<()> {
        if entry.is(MARK) || entry.length == 0 {
            return Ok(());
        }
        let data = self.data(entry)?;
        // Adjacent sectors with the same fate are written at once.
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

fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes[at..at + 8].try_into().expect("eight bytes");
    u64::from_le_bytes(bytes)
}
