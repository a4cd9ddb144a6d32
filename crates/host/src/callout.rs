//! A driver called as kubelet calls it (`Run` in pkg/volume/flexvolume/driver-call.go).

use crate::exec::Tool;
use flexvol_sdk::{Error, Result};
use std::{
    ffi::OsStr,
    io::{self, Read},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// More than any reply has; the rest is left unread.
const LONGEST: u64 = 1 << 20;

/// What a driver answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Standard output and standard error, as one buffer.
    pub output: Vec<u8>,
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    /// From exec to the end of the process.
    pub took: Duration,
}

/// One callout: an empty standard input, both outputs in one buffer, no environment, `/` as the
/// working directory, and no limit on its time.
///
/// # Errors
/// When the driver cannot be started. What it answers is not judged.
pub fn call(driver: &Tool, arguments: &[&OsStr]) -> Result<Reply> {
    exec(driver, arguments).map_err(|error| Error::system("call the driver", error))
}

fn exec(driver: &Tool, arguments: &[&OsStr]) -> io::Result<Reply> {
    let (reader, writer) = io::pipe()?;
    let mut command = Command::new(driver.path());
    command
        .args(arguments)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let started = Instant::now();
    let mut child = command.spawn()?;
    // The command has the write end, without which the pipe ends with the driver.
    drop(command);
    let mut output = Vec::new();
    reader.take(LONGEST).read_to_end(&mut output)?;
    let status = child.wait()?;
    Ok(Reply {
        output,
        code: status.code(),
        took: started.elapsed(),
    })
}
