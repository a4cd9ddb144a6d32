//! Signals that end a process.
#![allow(unsafe_code)]

use nix::sys::{
    signal::{SigSet, Signal},
    signalfd::{SfdFlags, SignalFd},
};
use std::{mem::MaybeUninit, ptr};

/// What a person, a terminal or a service manager ends a process with.
const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// The ending signals of this process and of its children, blocked until this is dropped. Those that are ignored stay
/// ignored.
#[derive(Debug)]
pub(crate) struct EndingSignals {
    blocked: SigSet,
    received: Option<SignalFd>,
}

impl EndingSignals {
    /// Blocks them. Where that fails, they end this process as before.
    pub(crate) fn block() -> EndingSignals {
        let mut blocked = SigSet::empty();
        let heard = ENDING.into_iter().filter(|signal| !is_ignored(*signal));
        heard.for_each(|signal| blocked.add(signal));
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let received = SignalFd::with_flags(&blocked, flags);
        let received = received.and_then(|fd| blocked.thread_block().map(|()| fd));
        if let Err(error) = &received {
            log::debug!("signals end this process at once: {error}");
        }
        EndingSignals {
            blocked,
            received: received.ok(),
        }
    }

    /// Returns the next one that was received.
    pub(crate) fn next(&self) -> Option<i32> {
        let signal = self.received.as_ref()?.read_signal().ok()??;
        i32::try_from(signal.ssi_signo).ok()
    }
}

impl Drop for EndingSignals {
    fn drop(&mut self) {
        if self.received.is_some() {
            let _ = self.blocked.thread_unblock();
        }
    }
}

/// Whether this process ignores a signal, as with `nohup` and in the background of a shell. A blocked signal would be
/// received in spite of that.
fn is_ignored(signal: Signal) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: `sigaction` only writes the present action into `action`, for which zeros are valid, too.
    let action = unsafe {
        libc::sigaction(signal as libc::c_int, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}
