//! systemd as the first process of a PID namespace. It has units, scopes and control groups as on a node, and starts no
//! service by itself.

use crate::patience;
use std::{
    fs,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Path of systemd in Debian (package systemd).
pub(crate) const PROGRAM: &str = "/usr/lib/systemd/systemd";

/// Starts systemd with an empty target. Without generators it is ready in seconds even in the virtual machine.
const SCRIPT: &str = "
    set -e
    mkdir -p /run/systemd/system
    printf '[Unit]\\nDefaultDependencies=no\\n' >/run/systemd/system/nothing.target
    mount -t tmpfs tmpfs /usr/lib/systemd/system-generators
    exec env -i container=test PATH=/usr/sbin:/usr/bin /usr/lib/systemd/systemd \\
        --unit=nothing.target --log-target=console --show-status=0";

/// A running service manager. It and all processes it started end when this is dropped.
#[derive(Debug)]
pub struct ServiceManager {
    unshare: Child,
    first: u32,
}

impl ServiceManager {
    /// Starts systemd in mount and PID namespaces of its own, on this process' files. Use it only in the virtual
    /// machine, because it takes over the machine's control groups.
    ///
    /// # Panics
    /// When systemd is not ready in time.
    #[must_use]
    pub fn start() -> Self {
        fs::write("/etc/machine-id", "0123456789abcdef0123456789abcdef\n")
            .expect("name the machine");
        let unshare = Command::new("unshare")
            .args(["--pid", "--fork", "--mount", "--mount-proc", "--kill-child"])
            .args(["bash", "-c", SCRIPT])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start systemd");
        let mut manager = ServiceManager { unshare, first: 0 };
        let number = manager.unshare.id();
        let children = format!("/proc/{number}/task/{number}/children");
        manager.wait_for("systemd to start", |manager| {
            let child = fs::read_to_string(&children).unwrap_or_default();
            manager.first = child.trim().parse().unwrap_or_default();
            manager.first != 0
        });
        manager.wait_for("systemd to be ready", |manager| {
            let socket = manager.path(Path::new("/run/systemd/private"));
            let ready = fs::metadata(socket).is_ok_and(|found| found.file_type().is_socket());
            ready
                && manager
                    .command("systemctl")
                    .arg("show")
                    .output()
                    .is_ok_and(|o| o.status.success())
        });
        manager
    }

    fn wait_for(&mut self, what: &str, question: impl Fn(&mut Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10) * patience();
        while !question(self) {
            assert!(Instant::now() < deadline, "waited for {what}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns the path of a file in the units' mount namespace.
    #[must_use]
    pub fn path(&self, file: &Path) -> PathBuf {
        let root = Path::new("/proc").join(self.first.to_string()).join("root");
        root.join(file.strip_prefix("/").unwrap_or(file))
    }

    /// Returns a command that runs in the units' mount and PID namespaces.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        let target = self.first.to_string();
        command.args(["--target", &target, "--mount", "--pid", "--", program]);
        command
    }

    /// Starts a service with this command as its main process.
    ///
    /// # Panics
    /// When systemd refuses.
    pub fn start_unit(&self, unit: &str, line: &[&str]) {
        let mut command = self.command("systemd-run");
        command.args(["--quiet", "--collect", "--property=DefaultDependencies=no"]);
        command.arg(format!("--unit={unit}")).arg("--").args(line);
        succeeded(&command.output().expect("start systemd-run"));
    }

    /// Stops a service, as its restart does first: ends all processes of the unit.
    ///
    /// # Panics
    /// When systemd refuses.
    pub fn stop_unit(&self, unit: &str) {
        let output = self.command("systemctl").args(["stop", unit]).output();
        succeeded(&output.expect("start systemctl"));
    }
}

fn succeeded(output: &Output) {
    assert!(output.status.success(), "{output:?}");
}

impl Drop for ServiceManager {
    fn drop(&mut self) {
        // Then the kernel ends all processes of the PID namespace.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}
