//! The start of a program in the place of std's, which asks the kernel for the bounds of the stack and makes a second
//! one to name a stack overflow on: a tenth of a callout that only answers.
#![allow(unsafe_code)]

use std::{
    ffi::c_int,
    io::{self, Write},
    panic,
    process::ExitCode,
};

/// Makes a function the start of the program, of which the root says `#![no_main]`.
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

/// Runs a program as std would, but for the message about a stack overflow.
///
/// glibc has told std its arguments before (`.init_array`).
pub fn start(run: fn() -> ExitCode) -> c_int {
    const PANICKED: c_int = 101;
    open_missing();
    // SAFETY: it takes no function. Writing to who has gone is an error then, and no end.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let code = panic::catch_unwind(run).map_or(PANICKED, number);
    // Nobody hears that this failed.
    let _ = io::stdout().flush();
    code
}

/// What is opened next must not take the place of stdin, stdout or stderr.
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
            // SAFETY: the path is a C string. It gets the lowest number that is free, which is this one.
            let opened = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
            if opened != entry.fd {
                // SAFETY: ends this process, which could write to somebody's file.
                unsafe { libc::_exit(1) }
            }
        }
    }
}

/// std compares exit codes and does not tell them.
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
