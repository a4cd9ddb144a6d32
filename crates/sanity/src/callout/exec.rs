//! Running the driver as kubelet does (`DriverCall.Run` in `pkg/volume/flexvolume/driver-call.go`).

use super::call::{Call, CallOptions, Exit};
use crate::system::command::supervise;
use anyhow::{Context, Result};
use std::{os::unix::process::ExitStatusExt, path::Path, process::Command, time::Duration};

/// Runs the driver once.
///
/// # Errors
/// When the process cannot be started. A driver that fails is no error: see the [`Call`].
pub fn run(
    executable: &Path,
    argv: &[String],
    options: &CallOptions,
    deadline: Duration,
) -> Result<Call> {
    let mut line = options.wrapper.clone();
    line.push(executable.into());
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]).args(argv).env_clear();
    command.envs(options.variables());
    let deadline = options.deadline.unwrap_or(deadline);
    let ran = supervise(&mut command, deadline, options.signal)
        .with_context(|| format!("run {}", line[0].display()))?;
    let exit = match ran.status {
        Some(status) if !ran.open => status.code().map_or_else(
            || Exit::Signal(status.signal().unwrap_or_default()),
            Exit::Code,
        ),
        _ => Exit::Deadline,
    };
    Ok(Call {
        executable: executable.to_owned(),
        argv: argv.to_owned(),
        options: options.clone(),
        stdout: ran.stdout,
        stderr: ran.stderr,
        exit,
        took: ran.took,
        lingered: ran.lingered,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        callout::call::Outcome,
        system::command::{LINGER, SignalTo},
    };
    use nix::sys::signal::Signal;

    fn shell(script: &str, options: &CallOptions) -> Call {
        let argv = ["-c".to_owned(), script.to_owned()];
        run(Path::new("/bin/sh"), &argv, options, Duration::from_secs(2)).unwrap()
    }

    #[test]
    fn both_outputs_are_taken_together() {
        let call = shell(
            "echo '{\"status\":\"Success\"}'; echo warning >&2",
            &CallOptions::default(),
        );
        assert!(matches!(call.outcome(), Outcome::Broken(_)));
        assert_eq!(call.stderr, b"warning\n");
    }

    #[test]
    fn a_driver_without_end_is_killed_with_its_children() {
        let call = shell("sleep 60 & sleep 60", &CallOptions::default());
        assert_eq!(call.exit, Exit::Deadline);
        assert!(call.took < Duration::from_secs(10));
    }

    #[test]
    fn a_child_that_keeps_the_output_is_noticed() {
        let call = shell("sleep 1 & echo '{}'", &CallOptions::default());
        assert!(call.lingered > LINGER, "{:?}", call.lingered);
        assert_eq!(call.exit, Exit::Code(0));
    }

    #[test]
    fn a_signal_reaches_the_driver_and_is_seen_to_end_it() {
        let options = CallOptions {
            signal: Some((
                Duration::from_millis(50),
                Signal::SIGKILL,
                SignalTo::Process,
            )),
            ..CallOptions::default()
        };
        assert!(shell("exec sleep 60", &options).was_killed());
        assert!(!shell("true", &options).was_killed());
    }
}
