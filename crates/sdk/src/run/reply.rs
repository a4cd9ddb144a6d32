//! Standard output, to which exactly one reply is written.

use nix::unistd::{dup2_stderr, dup2_stdout};
use std::{
    fs::File,
    io::{self, Write},
    os::fd::AsFd,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The real standard output, usable for one reply.
pub(super) struct Reply(Mutex<Option<File>>);

impl Reply {
    /// Moves the real standard output to a descriptor that children do not inherit, and redirects other output to
    /// /dev/null.
    pub(super) fn take_stdout() -> io::Result<Self> {
        let stdout = io::stdout().as_fd().try_clone_to_owned()?;
        let nowhere = File::options().read(true).write(true).open("/dev/null")?;
        // Standard output comes last, so that a failure can still be reported on it.
        dup2_stderr(&nowhere)?;
        dup2_stdout(&nowhere)?;
        Ok(Reply(Mutex::new(Some(stdout.into()))))
    }

    /// Sends the reply to this file instead.
    pub(super) fn replace(&self, output: File) {
        *self.lock() = Some(output);
    }

    /// Whether the reply was written.
    pub(super) fn is_given(&self) -> bool {
        self.lock().is_none()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Option<File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for &Reply {
    /// Writes the reply, unless one was written before.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match self.lock().take() {
            Some(mut stdout) => stdout.write_all(line).map(|()| line.len()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
