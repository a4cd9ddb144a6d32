//! What the targets share.

use cap::Cap;
use std::{alloc::System, ffi::OsString, os::unix::ffi::OsStringExt};

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

/// The arguments of an exec as `/proc/PID/cmdline` has them, separated by NUL, which none can hold.
pub fn arguments(data: &[u8]) -> Vec<OsString> {
    data.split(|&byte| byte == 0)
        .map(|argument| OsString::from_vec(argument.to_vec()))
        .collect()
}

/// Lets `read` hold at most `allowance` more bytes of memory than were held before. One that asks
/// for more is a crash: an allocation that fails.
pub fn within<T>(allowance: usize, read: impl FnOnce() -> T) -> T {
    let limit = MEMORY.allocated() + allowance;
    MEMORY.set_limit(limit).expect("above what is held");
    let result = read();
    MEMORY.set_limit(usize::MAX).expect("above what is held");
    result
}
