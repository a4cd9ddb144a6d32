//! An installed driver, called exactly as kubelet calls it.

use crate::Call;
use std::{
    env,
    ffi::OsStr,
    io::{self, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

/// Returns the path of the tested executable: `built` together with the test, or `FLEXVOL_EXECUTABLE` if the test was
/// copied to another machine.
#[must_use]
pub fn executable(built: &str) -> PathBuf {
    env::var_os("FLEXVOL_EXECUTABLE").map_or_else(|| built.into(), PathBuf::from)
}

/// An installed driver.
#[derive(Clone, Debug)]
pub struct Driver {
    executable: PathBuf,
    name: String,
}

impl Driver {
    /// Returns a driver with this name (`vendor/driver`) and the path at which kubelet would find it.
    #[must_use]
    pub fn new(name: &str, executable: PathBuf) -> Self {
        Driver {
            executable,
            name: name.to_owned(),
        }
    }

    /// Returns `vendor/driver`, as a persistent volume names it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path at which kubelet finds the driver.
    #[must_use]
    pub fn executable(&self) -> &Path {
        &self.executable
    }

    /// Makes a callout as kubelet does: standard input is `/dev/null`, standard output and standard error are one
    /// buffer, the environment is empty, the working directory is `/`.
    ///
    /// # Panics
    /// When the process cannot be started.
    pub fn call<S: AsRef<OsStr>>(&self, argv: &[S]) -> Call {
        self.call_through::<&str, S>(&[], argv)
    }

    /// Makes a callout in a mount namespace of its own, after the shell commands `changed` ran in it.
    ///
    /// # Panics
    /// When the shell cannot be started.
    pub fn call_where<S: AsRef<OsStr>>(&self, changed: &str, argv: &[S]) -> Call {
        let script = format!("{changed} && exec \"$@\"");
        let through = ["/usr/bin/unshare", "-m", "/bin/sh", "-c", &script, "sh"];
        self.call_through(&through, argv)
    }

    /// Makes a callout through another program: `through` is its command line, and the driver's one is appended.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn call_through<T: AsRef<OsStr>, S: AsRef<OsStr>>(
        &self,
        through: &[T],
        argv: &[S],
    ) -> Call {
        let mut line: Vec<&OsStr> = through.iter().map(AsRef::as_ref).collect();
        line.push(self.executable.as_os_str());
        line.extend(argv.iter().map(AsRef::as_ref));
        let (output, exit, took) = run(&line).unwrap_or_else(|e| panic!("start {line:?}: {e}"));
        Call {
            argv: argv
                .iter()
                .map(|arg| arg.as_ref().to_string_lossy().into_owned())
                .collect(),
            output,
            exit,
            took,
        }
    }
}

fn run(line: &[&OsStr]) -> io::Result<(Vec<u8>, Option<i32>, std::time::Duration)> {
    let (mut reader, writer) = io::pipe()?;
    let mut command = Command::new(line[0]);
    command
        .args(&line[1..])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let started = Instant::now();
    let mut child = command.spawn()?;
    // `command` holds the write end of the pipe; without it the pipe ends with the driver.
    drop(command);
    let mut output = Vec::new();
    reader.read_to_end(&mut output)?;
    let status = child.wait()?;
    Ok((output, status.code(), started.elapsed()))
}
