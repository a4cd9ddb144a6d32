//! Standard output, on which a callout is answered once.

use nix::unistd::{dup2_stderr, dup2_stdout};
use std::{
    fs::File,
    io::{self, Write},
    os::fd::AsFd,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The real standard output, good for one reply.
pub(super) struct Reply(Mutex<Option<File>>);

impl Reply {
    /// Keeps the real standard output as a descriptor that no child inherits, and lets what
    /// anybody else prints go nowhere.
    pub(super) fn take_stdout() -> io::Result<Self> {
        let stdout = io::stdout().as_fd().try_clone_to_owned()?;
        let nowhere = File::options().read(true).write(true).open("/dev/null")?;
        // Standard output last: where this fails, that is said on it.
        dup2_stderr(&nowhere)?;
        dup2_stdout(&nowhere)?;
        Ok(Reply(Mutex::new(Some(stdout.into()))))
    }

    /// The reply goes to this file from now on.
    pub(super) fn replace(&self, output: File) {
        *self.lock() = Some(output);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Option<File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for &Reply {
    /// Writes the reply unless there was one.
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
