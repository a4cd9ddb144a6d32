//! Notes of processes that are left behind at a pool's place.

use crate::mount;
use flexvol_sdk::leftover::LeftoverNote;
use std::path::Path;

/// What is done at a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Only looking.
    Read,
    /// What may change something.
    Write,
}

/// Returns the note of a process with this access to a place. The number of the file system keeps the directory of another
/// disk, mounted there in place of a dead one, from counting as dead too. While the process waits, no other file system
/// gets that number.
///
/// Reading waits for less than writing: a frozen file system can be read. So what waits with the one access says nothing
/// about the other.
pub(crate) fn leftover_note(place: &Path, access: Access) -> LeftoverNote {
    let mount = mount::holding(place, None).ok().flatten();
    LeftoverNote::of((access, mount.map(|mount| mount.number), place))
}
