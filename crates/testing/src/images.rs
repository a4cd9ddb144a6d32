//! Disk images: non-blank ones, which a driver must never format, and blank ones, which it must.
//!
//! A non-blank image is made once, by the format's own tool or from its documented magic numbers, and kept as its
//! non-zero bytes. Each [`Variant`] damages, moves or hides these, and leaves at least one non-zero byte.

mod kinds;
mod variants;

pub use kinds::{KINDS, Kind, Origin};
pub use variants::{VARIANTS, Variant};

use nix::fcntl::{FallocateFlags, fallocate};
use std::{
    fs::File,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

/// Non-zero bytes of an image.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// Length of the image in bytes.
    pub size: u64,
    /// Offsets and bytes, sorted and disjoint, each with a non-zero byte.
    parts: Vec<(u64, Vec<u8>)>,
}

/// Block size of parts. It keeps images of hundreds of MiB small in memory.
const PART: usize = 4096;

impl Content {
    fn new(size: u64) -> Self {
        Content {
            size,
            parts: Vec::new(),
        }
    }

    /// Adds bytes. Callers add them in ascending order.
    fn with(mut self, offset: u64, bytes: &[u8]) -> Self {
        assert!(
            offset + length(bytes) <= self.size,
            "{offset} is beyond the image"
        );
        self.parts.push((offset, bytes.to_vec()));
        self
    }

    /// Reads an image that a tool wrote.
    fn of(path: &Path) -> Self {
        let file = File::open(path).expect("open the tool's image");
        let size = file.metadata().expect("size the tool's image").len();
        let mut content = Content::new(size);
        let mut block = [0; PART];
        let mut at = 0;
        while at < size {
            let part = PART.min(usize::try_from(size - at).unwrap_or(PART));
            file.read_exact_at(&mut block[..part], at)
                .expect("read the tool's image");
            if block[..part] != [0; PART][..part] {
                content.parts.push((at, block[..part].to_vec()));
            }
            at += length(&block[..part]);
        }
        content
    }

    /// Whether every byte is zero.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.nonzero().next().is_none()
    }

    /// Returns the offsets and values of all non-zero bytes, in order.
    fn nonzero(&self) -> impl DoubleEndedIterator<Item = (u64, u8)> {
        self.parts.iter().flat_map(|(offset, bytes)| {
            (*offset..)
                .zip(bytes.iter().copied())
                .collect::<Vec<_>>()
                .into_iter()
                .filter(|(_, byte)| *byte != 0)
        })
    }

    /// Moves, changes or drops each byte. Bytes beyond `size` are dropped.
    fn map(&self, size: u64, decide: impl Fn(u64, u8) -> Option<(u64, u8)>) -> Self {
        let mut mapped = Content::new(size);
        for (offset, byte) in self.nonzero() {
            let Some((offset, byte)) = decide(offset, byte).filter(|(at, _)| *at < size) else {
                continue;
            };
            match mapped.parts.last_mut() {
                Some((start, bytes)) if *start + length(bytes) == offset => bytes.push(byte),
                _ => mapped.parts.push((offset, vec![byte])),
            }
        }
        mapped
    }

    /// Writes the image to a new file; `allocated` allocates all of its blocks first.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn write(&self, path: &Path, allocated: bool) {
        let file = create(path, self.size);
        if allocated {
            allocate(&file, 0, self.size);
        }
        for (offset, bytes) in &self.parts {
            file.write_all_at(bytes, *offset).expect("write an image");
        }
    }
}

/// Origin of a blank image's zeros.
#[derive(Clone, Copy, Debug)]
pub enum Blank {
    /// A hole.
    Sparse,
    /// Allocated blocks that were never written.
    Allocated,
    /// Written zeros.
    Written,
    /// A hole, written zeros and unwritten blocks, one after the other.
    Mixed,
    /// Data that was punched out.
    Punched,
}

impl Blank {
    /// All origins.
    pub const ALL: [Blank; 5] = [
        Blank::Sparse,
        Blank::Allocated,
        Blank::Written,
        Blank::Mixed,
        Blank::Punched,
    ];

    /// Creates a file of this kind.
    ///
    /// # Panics
    /// When the file cannot be created.
    pub fn write(self, path: &Path, size: u64) {
        let file = create(path, size);
        let zeros = |from: u64, to: u64| fill(&file, from, to, 0);
        match self {
            Blank::Sparse => {}
            Blank::Allocated => allocate(&file, 0, size),
            Blank::Written => zeros(0, size),
            Blank::Mixed => {
                zeros(size / 3, size / 2);
                allocate(&file, size / 2, size - size / 2);
            }
            Blank::Punched => {
                fill(&file, 0, size, 0xa5);
                let punch =
                    FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                fallocate(&file, punch, 0, signed(size)).expect("punch an image");
            }
        }
    }
}

/// Creates a file as a pool does: it must not exist, and only root may access it.
fn create(path: &Path, size: u64) -> File {
    let file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .expect("make an image");
    file.set_len(size).expect("size an image");
    file
}

fn allocate(file: &File, from: u64, length: u64) {
    fallocate(file, FallocateFlags::empty(), signed(from), signed(length))
        .expect("allocate an image");
}

fn fill(file: &File, from: u64, to: u64, byte: u8) {
    let block = [byte; 1 << 16];
    let mut at = from;
    while at < to {
        let part = usize::try_from(to - at).map_or(block.len(), |left| left.min(block.len()));
        file.write_all_at(&block[..part], at)
            .expect("fill an image");
        at += length(&block[..part]);
    }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).expect("64 bits")
}

fn signed(offset: u64) -> i64 {
    i64::try_from(offset).expect("an offset in a file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_enough_kinds_and_no_variant_is_blank() {
        let documented = KINDS
            .iter()
            .filter(|kind| matches!(kind.origin, Origin::Documented));
        let documented: Vec<_> = documented.collect();
        assert!(documented.len() >= 25);
        assert!(KINDS.len() * VARIANTS.len() >= 1000);
        for kind in documented {
            let content = kind.make(Path::new("unused"));
            for variant in VARIANTS {
                let changed = variant.apply(&content);
                assert!(!changed.is_blank(), "{} {}", kind.name, variant.name);
                assert!(changed.size % 512 == 0, "{} {}", kind.name, variant.name);
            }
        }
    }
}
