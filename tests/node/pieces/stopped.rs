//! A driver that stands still in a system call, while others go on.

use flexvol_testing::{Driver, Sandbox};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    io::Read,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A process that stands still in a system call.
pub struct Stopped {
    child: Child,
    /// Which of its processes stands.
    pid: Pid,
}

impl Stopped {
    /// Starts the driver, and waits until it has begun this call for the `nth` time.
    pub fn at(
        sandbox: &Sandbox,
        driver: &Driver,
        call: &str,
        nth: u32,
        arguments: &[&str],
    ) -> Self {
        let log = sandbox.path(&format!("{call}-{nth}.log"));
        // One of an earlier process says what that one did.
        let _ = fs::remove_file(&log);
        let inject = format!("inject={call}:signal=STOP:when={nth}");
        // The tracer is not the parent of what it traces: so the child is the driver.
        let child = Command::new("strace")
            .args([
                "-D",
                "-f",
                "-e",
                &format!("trace={call}"),
                "-e",
                &inject,
                "-o",
            ])
            .arg(&log)
            .arg(driver.executable())
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stopped = Stopped {
            pid: Pid::from_raw(i32::try_from(child.id()).unwrap()),
            child,
        };
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let log = fs::read_to_string(&log).unwrap_or_default();
            let stands = log.lines().find(|line| line.contains("stopped by SIGSTOP"));
            if let Some(pid) = stands.and_then(|line| line.split_whitespace().next()) {
                stopped.pid = Pid::from_raw(pid.parse().unwrap());
                return stopped;
            }
            assert!(Instant::now() < end, "{arguments:?} does not come so far");
            assert!(stopped.runs(), "{arguments:?} ended before");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Lets it go on to its end; what it said.
    pub fn goes_on(mut self) -> String {
        assert!(self.runs());
        kill(self.pid, Signal::SIGCONT).unwrap();
        let mut said = String::new();
        let mut stdout = self.child.stdout.take().unwrap();
        stdout.read_to_string(&mut said).unwrap();
        self.child.wait().unwrap();
        said
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // Of one that ended this is nothing.
        if self.runs() {
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
