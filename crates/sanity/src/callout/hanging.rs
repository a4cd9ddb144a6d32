//! Calls of the driver that hang until they are killed.

use crate::system::command::{PATH, has_ended, kill_group, number, reaped, start};
use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use std::{
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A call in the background. Its process group is killed on drop.
#[derive(Debug)]
pub struct Hanging(Child);

impl Hanging {
    /// Starts the driver as kubelet does.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(executable: &Path, argv: &[String]) -> Result<Self> {
        let mut command = Command::new(executable);
        command
            .args(argv)
            .env_clear()
            .env("PATH", PATH)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(Hanging(start(&mut command).context("start the driver")?))
    }

    /// Sends SIGSTOP after a while. Returns false if the call had ended.
    ///
    /// # Errors
    /// When the kernel reports that it cannot be stopped.
    pub fn stop_after(&self, after: Duration) -> Result<bool> {
        thread::sleep(after);
        if has_ended(&self.0)? {
            return Ok(false);
        }
        kill(number(&self.0), Signal::SIGSTOP).context("stop the driver")?;
        Ok(!has_ended(&self.0)?)
    }

    /// Waits until the condition holds. Returns false if the call ended first, or on timeout.
    ///
    /// # Errors
    /// When the kernel cannot report whether it has ended.
    pub fn goes_until(&self, is_so: impl Fn() -> bool, within: Duration) -> Result<bool> {
        let end = Instant::now() + within;
        while !is_so() {
            if has_ended(&self.0)? || Instant::now() > end {
                return Ok(is_so());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(true)
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        kill_group(&self.0);
        // It was killed, so its exit status is of no use.
        let _ = reaped(&mut self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Hanging {
        let argv = ["-c".to_owned(), script.to_owned()];
        Hanging::start(Path::new("/bin/sh"), &argv).unwrap()
    }

    #[test]
    fn a_call_that_hangs_is_told_from_one_that_had_ended() {
        let after = Duration::from_millis(200);
        assert!(shell("sleep 60").stop_after(after).unwrap());
        assert!(!shell("true").stop_after(after).unwrap());
    }

    #[test]
    fn a_call_is_waited_for_until_it_is_somewhere_or_over() {
        let place = tempfile::tempdir().unwrap();
        let mark = place.path().join("mark");
        let within = Duration::from_secs(10);
        let script = format!("sleep 0.1; : >{}; sleep 60", mark.display());
        let call = shell(&script);
        assert!(call.goes_until(|| mark.exists(), within).unwrap());
        assert!(!shell("true").goes_until(|| false, within).unwrap());
    }
}
