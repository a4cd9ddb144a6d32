//! One call of a driver, as kubelet makes it, but with a deadline and with standard error apart.

use crate::support::log;
use flexvol_sdk::{DriverStatus, ErrorClass, Status};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use std::{
    io,
    path::{Path, PathBuf},
    process::{self, Stdio},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Command,
    time::timeout,
};

/// How long a call may take: the proposal's limit for growth.
pub const DEADLINE: Duration = Duration::from_secs(600);

/// The longest that an agent may be told to let one take, in seconds: the controller waits for it.
pub(crate) const LONGEST_DEADLINE: u64 = 3600;

/// How long a call may take, as the agent is told.
#[must_use]
pub fn deadline(seconds: u64) -> Duration {
    let bounded = seconds.clamp(1, LONGEST_DEADLINE);
    if bounded != seconds {
        let (said, taken) = (seconds.to_string(), bounded.to_string());
        log::warn(
            "the deadline is from 1 to 3600 seconds",
            &[("said", &said), ("taken", &taken)],
        );
    }
    Duration::from_secs(bounded)
}

/// No reply is longer.
const MAX_LENGTH: u64 = 64 << 10;

/// Where a node's drivers are, and how they are reached.
#[derive(Clone, Debug)]
pub struct Drivers {
    /// Kubelet's plugin directory, as the drivers' own host sees it.
    pub plugins: PathBuf,
    /// A mount namespace to enter first: `/proc/1/ns/mnt` in a pod that sees the host's processes.
    pub mounts: Option<PathBuf>,
    /// How long a call may take.
    pub deadline: Duration,
}

/// Why a call brought nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What can be done about it.
    pub class: ErrorClass,
    /// For people.
    pub message: String,
    /// The driver does not know the callout.
    pub unsupported: bool,
}

impl Failure {
    /// A failure of this class.
    #[must_use]
    pub fn new(class: ErrorClass, message: String) -> Self {
        Failure {
            class,
            message,
            unsupported: false,
        }
    }
}

impl Drivers {
    /// The mounts that drivers see.
    #[must_use]
    pub fn mount_table(&self) -> PathBuf {
        // Of the process whose namespace it is: /proc/1/ns/mnt.
        let process = self
            .mounts
            .as_deref()
            .and_then(|mounts| mounts.ancestors().nth(2));
        process.unwrap_or(Path::new("/proc/self")).join("mountinfo")
    }

    /// Calls a driver and returns its reply, which is a Success.
    ///
    /// # Errors
    /// When the driver is not there, does not end, answers no JSON, or says that it failed.
    pub async fn call(&self, driver: &str, arguments: &[String]) -> Result<DriverStatus, Failure> {
        let retry = |message: String| Failure::new(ErrorClass::Retryable, message);
        let program = self.program(driver).ok_or_else(|| {
            let message = format!("{driver:?} is no driver's name: vendor/driver");
            Failure::new(ErrorClass::Infeasible, message)
        })?;
        // The same executable, which enters the host's mounts and then becomes the driver. The driver
        // dies with the agent; what it has started does not, and may still run when the next agent
        // calls: that is for the driver's own lock.
        let mut command = Command::new("/proc/self/exe");
        command
            .arg("enter")
            .arg("--agent")
            .arg(process::id().to_string());
        if let Some(mounts) = &self.mounts {
            command.arg("--mounts").arg(mounts);
        }
        command.arg("--").arg(&program).args(arguments);
        command
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = command
            .spawn()
            .map_err(|error| retry(format!("cannot start driver {driver}: {error}")))?;
        let group = child.id().and_then(|id| i32::try_from(id).ok());
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let all = async {
            let (out, err) = tokio::join!(read(out), read(err));
            child.wait().await.map(|status| (status, out, err))
        };
        let ended = timeout(self.deadline, all).await;
        let Ok(ended) = ended else {
            if let Some(group) = group {
                // It has ended meanwhile.
                let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
            }
            // So that no zombie stays, unless it waits for a disk; the runtime then waits for it.
            let _ = timeout(Duration::from_secs(5), child.wait()).await;
            let seconds = self.deadline.as_secs();
            let message = format!("driver {driver} did not end in {seconds} s, and was killed");
            return Err(Failure::new(ErrorClass::Uncertain, message));
        };
        let (status, out, err) = ended
            .and_then(|(status, out, err)| Ok((status, out?, err?)))
            .map_err(|error| retry(format!("cannot read what driver {driver} says: {error}")))?;
        let Ok(reply) = serde_json::from_slice::<DriverStatus>(&out) else {
            let said = String::from_utf8_lossy(if out.is_empty() { &err } else { &out });
            let said: String = said.trim().chars().take(200).collect();
            // Events repeat the message to whoever has the claim, who shall not read what is the node's.
            log::warn(
                "a driver answered no JSON",
                &[("driver", driver), ("said", &said)],
            );
            return Err(retry(format!(
                "driver {driver} answered no JSON ({status}); see the agent's log"
            )));
        };
        match reply.status {
            // As kubelet has it (`driver-call.go`): who ends so has not succeeded.
            Status::Success if !status.success() => Err(retry(format!(
                "driver {driver} answered Success and failed ({status})"
            ))),
            Status::Success => Ok(reply),
            Status::NotSupported => Err(Failure {
                class: ErrorClass::Infeasible,
                message: format!("driver {driver} has no such callout"),
                unsupported: true,
            }),
            Status::Failure => Err(Failure::new(
                reply.error_class.unwrap_or(ErrorClass::Retryable),
                reply
                    .message
                    .unwrap_or_else(|| format!("driver {driver} failed and did not say why")),
            )),
        }
    }

    /// `vendor~driver/driver` in the plugin directory; names cannot lead out of it.
    fn program(&self, driver: &str) -> Option<PathBuf> {
        let (vendor, name) = driver.split_once('/')?;
        let plain = |part: &str| {
            !part.is_empty()
                && !part.starts_with('.')
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        (plain(vendor) && plain(name))
            .then(|| self.plugins.join(format!("{vendor}~{name}")).join(name))
    }
}

async fn read(from: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        let mut first = (&mut from).take(MAX_LENGTH);
        first.read_to_end(&mut bytes).await?;
        // A driver that says more must not wait for a reader.
        tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drivers(deadline: Duration) -> Drivers {
        Drivers {
            plugins: "/plugins".into(),
            mounts: None,
            deadline,
        }
    }

    #[test]
    fn no_deadline_is_zero_or_longer_than_the_controller_waits() {
        let all = [0, 1, 600, 3600, 7200, u64::MAX].map(|seconds| deadline(seconds).as_secs());
        assert_eq!(all, [1, 1, 600, 3600, 3600, 3600]);
    }

    #[test]
    fn a_drivers_name_leads_to_one_place() {
        let drivers = drivers(DEADLINE);
        assert_eq!(
            drivers.program("example.com/disk"),
            Some("/plugins/example.com~disk/disk".into())
        );
        for bad in [
            "disk", "a/b/c", "../disk", "a/..", "a/", "/b", "a/b c", ".a/b",
        ] {
            assert_eq!(drivers.program(bad), None, "{bad}");
        }
    }

    #[tokio::test]
    async fn what_is_no_reply_is_not_repeated_to_whoever_has_the_claim() {
        // What is called is this test's own executable, which complains of the arguments.
        let called = drivers(DEADLINE).call("a/b", &["init".to_owned()]).await;
        let failure = called.unwrap_err();
        assert_eq!(failure.class, ErrorClass::Retryable);
        let (head, tail) = failure.message.split_once(" (exit").unwrap();
        assert_eq!(head, "driver a/b answered no JSON");
        assert!(tail.ends_with("); see the agent's log"), "{tail}");
        assert!(tail.len() < 50, "{tail}");
    }
}
