//! Program start that replaces std's. The latter asks the kernel for the stack's bounds and allocates a second stack
//! for reporting stack overflows: a tenth of the time of a callout that only answers.
#![allow(unsafe_code)]

use std::{
    ffi::c_int,
    io::{self, Write},
    panic,
    process::ExitCode,
};

/// Defines the program's `main` from a function. The crate root needs `#![no_main]`.
#[macro_export]
macro_rules! main {
    ($run:path) => {
        #[unsafe(no_mangle)]
        extern "C" fn main(
            _: ::std::ffi::c_int,
            _: *const *const ::std::ffi::c_char,
        ) -> ::std::ffi::c_int {
            $crate::start($run)
        }
    };
}

/// Runs a program as std would, without the message about a stack overflow.
///
/// glibc has passed the arguments to std before (`.init_array`).
pub fn start(run: fn() -> ExitCode) -> c_int {
    const PANICKED: c_int = 101;
    open_missing();
    // SAFETY: SIG_IGN is no function. Writing to a closed pipe is then an error and does not kill this process.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let code = panic::catch_unwind(run).map_or(PANICKED, number);
    // A failure cannot be reported any more.
    let _ = io::stdout().flush();
    code
}

/// Opens /dev/null for each closed standard stream, so that no file opened later takes its descriptor.
fn open_missing() {
    let entry = |fd| libc::pollfd {
        fd,
        events: 0,
        revents: 0,
    };
    let mut standard = [entry(0), entry(1), entry(2)];
    // SAFETY: the array has three entries.
    let polled = unsafe { libc::poll(standard.as_mut_ptr(), 3, 0) };
    for entry in standard {
        if polled > 0 && entry.revents & libc::POLLNVAL != 0 {
            // SAFETY: the path is a C string. The file gets the lowest free descriptor, which is this one.
            let opened = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
            if opened != entry.fd {
                // SAFETY: ends this process, which otherwise could write to the wrong file.
                unsafe { libc::_exit(1) }
            }
        }
    }
}

/// Returns the number of an exit code. std can only compare exit codes.
fn number(code: ExitCode) -> c_int {
    (0..u8::MAX)
        .find(|number| ExitCode::from(*number) == code)
        .unwrap_or(u8::MAX)
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_its_number() {
        for code in [0, 1, 3, 254, 255] {
            assert_eq!(number(ExitCode::from(code)), c_int::from(code));
        }
    }
}
