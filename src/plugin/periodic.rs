//! Periodic work until this process is told to stop.

use anyhow::{Context, Result};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};
use std::{os::fd::AsFd, time::Duration};

/// Calls `round` immediately and then at intervals of `pause`, until SIGTERM or SIGINT arrives.
///
/// The signals are blocked, because the first process of a container has no default action for
/// them: unblocked and without a handler they would be dropped (`sig_ignored` in the kernel's
/// kernel/signal.c).
pub fn every(pause: Duration, mut round: impl FnMut()) -> Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block().context("block signals")?;
    let told =
        SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC).context("listen for signals")?;
    let pause = PollTimeout::try_from(pause).context("pause")?;
    loop {
        round();
        let mut events = [PollFd::new(told.as_fd(), PollFlags::POLLIN)];
        match poll(&mut events, pause) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error).context("wait for signals"),
        }
    }
}
