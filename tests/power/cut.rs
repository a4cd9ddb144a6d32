//! Moments at which the power is cut, and what survives.

use std::fmt::{self, Display, Formatter};

/// A moment, and one of its crash images.
pub type Cut = (usize, Surviving);

/// The unflushed writes that survive a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Surviving {
    All,
    /// A random part, with this number as seed.
    Some(u64),
    /// All but one of the two sectors of an ext4 volume's superblock. Hardly one in a thousand random images has this.
    AllButSectorOfSuperblock(u64),
    /// All but one of the first two blocks of an ext4: that of the superblock, or that of the group descriptors. The
    /// kernel reads both before it replays the journal.
    AllButBlock(u64),
}

impl Display for Surviving {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Surviving::All => f.write_str("with all that was written"),
            Surviving::Some(which) => write!(f, "image {which}"),
            Surviving::AllButSectorOfSuperblock(sector) => {
                write!(f, "without sector {sector} of its superblock")
            }
            Surviving::AllButBlock(block) => write!(f, "without block {block} of its file system"),
        }
    }
}
