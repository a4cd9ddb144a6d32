//! Driver calls like kubelet's, but with a timeout and separate standard error.

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

/// Default timeout of a call: the proposal's limit for growth.
pub const DEADLINE: Duration = Duration::from_secs(600);

/// Maximum timeout in seconds, because the controller waits for calls.
pub(crate) const LONGEST_DEADLINE: u64 = 3600;

/// Returns the configured timeout, within its limits.
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

/// Maximum length of a reply.
const MAX_LENGTH: u64 = 64 << 10;

/// Location of a node's drivers, and how they are run.
#[derive(Clone, Debug)]
pub struct Drivers {
    /// Kubelet's plugin directory, as seen in the drivers' mount namespace.
    pub plugins: PathBuf,
    /// Mount namespace to enter first: `/proc/1/ns/mnt` in a pod with `hostPID`.
    pub mounts: Option<PathBuf>,
    /// Timeout of a call.
    pub deadline: Duration,
}

/// Failure of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What can be done about it.
    pub class: ErrorClass,
    /// Message for people.
    pub message: String,
    /// Whether the driver lacks the callout.
    pub unsupported: bool,
}

impl Failure {
    /// Creates a failure of this class.
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
    /// The mount table of the drivers' mount namespace.
    #[must_use]
    pub fn mount_table(&self) -> PathBuf {
        // The namespace file is /proc/1/ns/mnt, and its process's directory /proc/1.
        let process = self
            .mounts
            .as_deref()
            .and_then(|mounts| mounts.ancestors().nth(2));
        process.unwrap_or(Path::new("/proc/self")).join("mountinfo")
    }

    /// Calls a driver. Returns its reply if the status is Success.
    ///
    /// # Errors
    /// When the driver is missing, times out, prints no JSON, or reports a failure.
    pub async fn call(&self, driver: &str, arguments: &[String]) -> Result<DriverStatus, Failure> {
        let retry = |message: String| Failure::new(ErrorClass::Retryable, message);
        let program = self.program(driver).ok_or_else(|| {
            let message = format!("{driver:?} is no driver's name: vendor/driver");
            Failure::new(ErrorClass::Infeasible, message)
        })?;
        // Runs this executable, which enters the host's mount namespace and then execs the driver. The driver is killed
        // when the agent dies. Its children are not, and may still run when the next agent calls: the driver's own lock
        // has to handle that.
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
                // The group may have ended meanwhile.
                let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
            }
            // Reaps the child, unless it is blocked by a disk. Then the runtime reaps it later.
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
            // Not in the message, which events show to the claim's owner: the output may contain details of the node.
            log::warn(
                "a driver answered no JSON",
                &[("driver", driver), ("said", &said)],
            );
            return Err(retry(format!(
                "driver {driver} answered no JSON ({status}); see the agent's log"
            )));
        };
        match reply.status {
            // As in kubelet (`driver-call.go`): a nonzero exit status is a failure.
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

    /// Returns `vendor~driver/driver` in the plugin directory. Valid names cannot lead out of it.
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
        // Drains the rest, so that the driver never blocks on a full pipe.
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
        // Calls this test's own executable, which complains about the arguments.
        let called = drivers(DEADLINE).call("a/b", &["init".to_owned()]).await;
        let failure = called.unwrap_err();
        assert_eq!(failure.class, ErrorClass::Retryable);
        let (head, tail) = failure.message.split_once(" (exit").unwrap();
        assert_eq!(head, "driver a/b answered no JSON");
        assert!(tail.ends_with("); see the agent's log"), "{tail}");
        assert!(tail.len() < 50, "{tail}");
    }
}
