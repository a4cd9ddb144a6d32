//! Functions for several fuzz targets.

use cap::Cap;
use std::{alloc::System, ffi::OsString, os::unix::ffi::OsStringExt};

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

/// Splits arguments as `/proc/PID/cmdline` has them: they are separated by NUL, which an argument cannot contain.
pub fn arguments(data: &[u8]) -> Vec<OsString> {
    data.split(|&byte| byte == 0)
        .map(|argument| OsString::from_vec(argument.to_vec()))
        .collect()
}

/// Runs `read` with at most `allowance` more bytes of memory than are allocated now. A larger demand is a crash,
/// because the allocation fails.
pub fn within<T>(allowance: usize, read: impl FnOnce() -> T) -> T {
    let limit = MEMORY.allocated() + allowance;
    MEMORY.set_limit(limit).expect("above what is held");
    let result = read();
    MEMORY.set_limit(usize::MAX).expect("above what is held");
    result
}
