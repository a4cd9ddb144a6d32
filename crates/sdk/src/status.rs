//! The reply to a callout: one JSON object on one line.

use crate::{Bytes, Capacity, Error, ErrorClass, Provisioned, argument::SECRET};
use serde::{Serialize, Serializer};
use std::{collections::BTreeMap, ffi::OsString, os::unix::ffi::OsStrExt};

mod decode;

/// The outcome, in the exact words that callers compare (pkg/volume/flexvolume/driver-call.go).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Status {
    /// The requested state is reached.
    Success,
    /// The requested state is not reached; the caller will retry.
    Failure,
    /// The driver does not implement the callout. Kubelet does not ask again, for any volume.
    #[serde(rename = "Not supported")]
    NotSupported,
}

impl Status {
    /// Returns the word in the reply.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Success => "Success",
            Status::Failure => "Failure",
            Status::NotSupported => "Not supported",
        }
    }
}

/// The capabilities that `init` reports. The five keys that Kubernetes reads are always written.
///
/// Begin with [`local`](Capabilities::local) or [`attached`](Capabilities::attached), and change what differs. The
/// default is what Kubernetes assumes for absent keys, attach included.
///
/// ```
/// # use flexvol_sdk::Capabilities;
/// let mut capabilities = Capabilities::local();
/// capabilities.supports_metrics = false;
/// assert!(!capabilities.attach && capabilities.requires_fs_resize);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Capabilities {
    /// The driver attaches volumes. It must then be installed in the controller manager too, or pods wait for ever.
    /// Since 1.7.
    pub attach: bool,
    /// The container runtime may relabel the files for SELinux. Since 1.8.
    pub selinux_relabel: bool,
    /// Kubelet may call `statfs` on the pods' directories for its metrics. Since 1.13.
    pub supports_metrics: bool,
    /// Kubelet changes the group of the files to the pod's fsGroup after `mount`; otherwise the driver must do it.
    /// Since 1.13.
    pub fs_group: bool,
    /// Kubelet calls `expandfs`. If false, stock Kubernetes never finishes the growth of a claim. Since 1.13.
    #[serde(rename = "requiresFSResize")]
    pub requires_fs_resize: bool,
    /// Others than kubelet may call `expandfs`, even at the same time: the volume grows once, and both get the
    /// correct answer. If true, flexvol's agent calls it at once. Kubernetes ignores the key.
    #[serde(rename = "concurrentFSResize", skip_serializing_if = "is_missing")]
    pub concurrent_fs_resize: bool,
}

/// Whether to omit the key: absent means false, so drivers need not know it.
fn is_missing(capability: &bool) -> bool {
    !*capability
}

impl Capabilities {
    /// Returns the capabilities of a driver whose volumes need no attaching, each with a file system of its own that
    /// grows: disks of the node, or storage that every node can mount.
    #[must_use]
    pub const fn local() -> Self {
        Capabilities {
            attach: false,
            selinux_relabel: true,
            supports_metrics: true,
            fs_group: true,
            requires_fs_resize: true,
            concurrent_fs_resize: false,
        }
    }

    /// Returns the same for volumes that are attached to one node after another. Install such a driver where the
    /// controller manager runs, too.
    #[must_use]
    pub const fn attached() -> Self {
        Capabilities {
            attach: true,
            ..Capabilities::local()
        }
    }
}

impl Default for Capabilities {
    fn default() -> Self {
        Capabilities {
            attach: true,
            selinux_relabel: true,
            supports_metrics: false,
            fs_group: true,
            requires_fs_resize: true,
            concurrent_fs_resize: false,
        }
    }
}

/// The space of a pool in bytes. A number that is `None` is unknown, which is not the same as zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolSpace {
    /// The pool's name, the same in every reply about this pool.
    pub pool: String,
    /// The size of the whole pool.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "number")]
    pub size: Option<Bytes>,
    /// What the pool can still give to volumes: not the space that it reserves, or has promised.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "number")]
    pub free: Option<Bytes>,
    /// The sizes of all its volumes together, which may exceed the size of a thin pool.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "number")]
    pub promised: Option<Bytes>,
}

/// The reply to a callout.
///
/// Kubernetes reads the fields from `status` to `volumeNewSize`. The fields after them are read by flexvol's own
/// callers and ignored by others. Fields that are `None` or empty are not written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DriverStatus {
    /// The outcome.
    pub status: Status,
    /// Text for users. Kubelet copies that of a failure into the pod's events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Of `attach` and `waitforattach`: the device to pass to the next callout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Of `provision`: the volume's handle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_name: Option<String>,
    /// Of `isattached`. Callers take an absent value for "detached".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attached: Option<bool>,
    /// Of `init`: the driver's capabilities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// Of `expandvolume` and `expandfs`: the size measured afterwards, in bytes. Kubernetes decodes it, but records
    /// the size that it requested.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "number")]
    pub volume_new_size: Option<Bytes>,
    /// Of `provision`: the options that the persistent volume must carry.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// Of `provision`: the actual size; of `capacity`: the largest possible size. In bytes.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "number")]
    pub capacity: Option<Bytes>,
    /// Of `capacity`: by how much the storage falls short of what it promised its volumes, in bytes.
    #[serde(
        rename = "missing",
        skip_serializing_if = "Option::is_none",
        serialize_with = "number"
    )]
    pub shortfall: Option<Bytes>,
    /// Of `capacity`: the pool that a volume of these parameters would be in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_space: Option<PoolSpace>,
    /// Of `provision`: the labels of the nodes that can reach the volume.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub topology: BTreeMap<String, String>,
    /// Of `provision`: the file system the persistent volume should name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs_type: Option<String>,
    /// Of a failure: what the caller can do about it.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "word")]
    pub error_class: Option<ErrorClass>,
}

impl DriverStatus {
    fn new(status: Status) -> Self {
        DriverStatus {
            status,
            message: None,
            device: None,
            volume_name: None,
            attached: None,
            capabilities: None,
            volume_new_size: None,
            options: BTreeMap::new(),
            capacity: None,
            shortfall: None,
            pool_space: None,
            topology: BTreeMap::new(),
            fs_type: None,
            error_class: None,
        }
    }

    /// A Success without further fields.
    #[must_use]
    pub fn success() -> Self {
        DriverStatus::new(Status::Success)
    }

    /// The answer to `init`.
    #[must_use]
    pub fn initialized(capabilities: Capabilities) -> Self {
        DriverStatus {
            capabilities: Some(capabilities),
            ..DriverStatus::success()
        }
    }

    /// The answer to `attach` and `waitforattach`.
    #[must_use]
    pub fn device(device: String) -> Self {
        DriverStatus {
            device: Some(device),
            ..DriverStatus::success()
        }
    }

    /// The answer to `isattached`.
    #[must_use]
    pub fn attached(attached: bool) -> Self {
        DriverStatus {
            attached: Some(attached),
            ..DriverStatus::success()
        }
    }

    /// The answer to `expandvolume` and `expandfs`; `None` if nothing was measured.
    #[must_use]
    pub fn expanded(measured: Option<Bytes>) -> Self {
        DriverStatus {
            volume_new_size: measured,
            ..DriverStatus::success()
        }
    }

    /// The answer to `provision`.
    #[must_use]
    pub fn provisioned(provisioned: Provisioned) -> Self {
        DriverStatus {
            volume_name: Some(provisioned.handle.to_string()),
            options: provisioned.options,
            capacity: Some(provisioned.size),
            fs_type: provisioned
                .filesystem
                .map(|filesystem| filesystem.to_string()),
            ..DriverStatus::success()
        }
    }

    /// The answer to `capacity`.
    #[must_use]
    pub fn capacity(found: Capacity) -> Self {
        DriverStatus {
            capacity: Some(found.largest),
            shortfall: found.shortfall,
            pool_space: found.pool,
            ..DriverStatus::success()
        }
    }

    /// A Failure with the public part of an error, and its class.
    #[must_use]
    pub fn failure(error: &Error) -> Self {
        DriverStatus {
            message: Some(error.to_string()),
            error_class: Some(error.kind().class()),
            ..DriverStatus::new(Status::Failure)
        }
    }

    /// The answer to a callout that the driver does not implement.
    pub(crate) fn not_supported() -> Self {
        DriverStatus::new(Status::NotSupported)
    }

    /// Encodes the reply as one JSON object on one line, with a newline at its end. The message is put on one line
    /// and cut at 4 KiB.
    #[must_use]
    pub fn to_line(&self) -> String {
        let line = DriverStatus {
            message: self.message.as_deref().map(one_line),
            ..self.clone()
        };
        let mut line = serde_json::to_string(&line)
            .unwrap_or_else(|_| format!(r#"{{"status":"{}"}}"#, Status::Failure.as_str()));
        line.push('\n');
        line
    }

    /// Returns the exit code: 0 for Success and 1 otherwise, as shells expect. But always 0 if the arguments carry
    /// a secret, because kubelet logs the arguments when a driver exits with any other code (`Run` in
    /// pkg/volume/flexvolume/driver-call.go).
    #[must_use]
    pub fn exit_code(&self, argv: &[OsString]) -> u8 {
        let secret = SECRET.as_bytes();
        let is_secret = |argument: &OsString| {
            let bytes = argument.as_bytes();
            bytes.windows(secret.len()).any(|window| window == secret)
        };
        u8::from(self.status != Status::Success && !argv.iter().any(is_secret))
    }
}

const LONGEST_MESSAGE: usize = 4 << 10;

fn one_line(message: &str) -> String {
    let end = (0..=LONGEST_MESSAGE.min(message.len()))
        .rfind(|&end| message.is_char_boundary(end))
        .unwrap_or(0);
    let mut line: String = message[..end]
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if end < message.len() {
        line.push('…');
    }
    line
}

fn number<S: Serializer>(bytes: &Option<Bytes>, serializer: S) -> Result<S::Ok, S::Error> {
    bytes.map(|bytes| bytes.0).serialize(serializer)
}

fn word<S: Serializer>(class: &Option<ErrorClass>, serializer: S) -> Result<S::Ok, S::Error> {
    class.map(ErrorClass::as_str).serialize(serializer)
}

#[cfg(test)]
mod tests;
