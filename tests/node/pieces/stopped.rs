//! A driver that is stopped in a system call while others continue.

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

/// A process that is stopped in a system call.
pub struct Stopped {
    child: Child,
    /// The stopped process or thread.
    pid: Pid,
}

impl Stopped {
    /// Starts the driver, and waits until it is stopped in this system call for the `nth` time.
    pub fn at(
        sandbox: &Sandbox,
        driver: &Driver,
        call: &str,
        nth: u32,
        arguments: &[&str],
    ) -> Self {
        let log = sandbox.path(&format!("{call}-{nth}.log"));
        // Removes the log of an earlier process.
        let _ = fs::remove_file(&log);
        let inject = format!("inject={call}:signal=STOP:when={nth}");
        // With -D the tracer is not the parent, so the child is the driver.
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

    /// Lets it continue to its end, and returns its output.
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
        // It does nothing if the process has ended.
        if self.runs() {
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
