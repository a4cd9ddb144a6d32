//! How large a file this process may make.

use crate::Bytes;
use nix::sys::{
    resource::{RLIM_INFINITY, Resource, getrlimit},
    signal::{SigSet, Signal},
};

/// Lets a write beyond RLIMIT_FSIZE fail with EFBIG, so that it is answered and what was begun is
/// undone, instead of ending this process by SIGXFSZ. Blocked the signal does as little as ignored, which
/// would take `unsafe` (the kernel's `inode_newsize_ok` sends it and fails all the same). A program that
/// is started inherits that unless it is unblocked for it.
pub fn outlive() {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGXFSZ);
    if let Err(error) = signals.thread_block() {
        log::warn!("cannot block SIGXFSZ: {error}");
    }
}

/// The size beyond which a file is too large; `None` where nothing limits it.
pub(crate) fn largest_file() -> Option<Bytes> {
    let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE).ok()?;
    (limit != RLIM_INFINITY).then_some(Bytes(limit))
}
