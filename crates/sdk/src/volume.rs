//! What callers say about a volume.

use crate::{Bytes, Error, ErrorKind, Options, Result, Secret};
use std::{collections::BTreeMap, fmt, path::PathBuf, str::FromStr};

/// A file system that can be grown while it is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Filesystem {
    /// ext3, which every kernel since 4.3 mounts with its ext4 code.
    Ext3,
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs on one device.
    Btrfs,
}

impl Filesystem {
    /// Every file system that a volume may hold.
    pub const ALL: [Filesystem; 4] = [
        Filesystem::Ext3,
        Filesystem::Ext4,
        Filesystem::Xfs,
        Filesystem::Btrfs,
    ];

    /// The kernel's name, which is Kubernetes' `fsType` too.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Filesystem::Ext3 => "ext3",
            Filesystem::Ext4 => "ext4",
            Filesystem::Xfs => "xfs",
            Filesystem::Btrfs => "btrfs",
        }
    }
}

impl fmt::Display for Filesystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Filesystem {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Filesystem::ALL
            .into_iter()
            .find(|filesystem| filesystem.as_str() == text)
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::Invalid,
                    format!("file system {text:?} is not one of ext3, ext4, xfs, btrfs"),
                )
            })
    }
}

/// The name of a persistent volume, or of a pod's inline volume.
///
/// A DNS subdomain as Kubernetes validates it: 1 to 253 of `a-z 0-9 - .`, each label beginning
/// and ending with a letter or digit. Whoever writes a pod chooses the name of an inline volume,
/// so a name is never an identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeName(String);

impl VolumeName {
    /// Checks and wraps a name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a name the API server would not have accepted.
    pub fn parse(text: &str) -> Result<Self> {
        let alphanumeric = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let label = |label: &str| {
            let bytes = label.as_bytes();
            bytes.first().is_some_and(|&c| alphanumeric(c))
                && bytes.last().is_some_and(|&c| alphanumeric(c))
                && bytes.iter().all(|&c| alphanumeric(c) || c == b'-')
        };
        if text.len() <= 253 && text.split('.').all(label) {
            return Ok(VolumeName(text.to_owned()));
        }
        Err(Error::new(
            ErrorKind::Invalid,
            format!("volume name {text:?} is not a DNS subdomain (a-z, 0-9, '-' and '.')"),
        ))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether no pod could have chosen this name: the names of inline volumes are DNS labels,
    /// which have no dot (Kubernetes `ValidateVolumes`), those of persistent volumes may have one.
    #[must_use]
    pub fn is_beyond_pods(&self) -> bool {
        self.0.contains('.')
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The JSON argument of a callout, with the keys Kubernetes itself writes split off.
#[derive(Clone, Debug, Default)]
pub struct Volume {
    /// `kubernetes.io/pvOrVolumeName`; absent from callers that name no volume (`capacity`).
    pub name: Option<VolumeName>,
    /// `kubernetes.io/fsType`; `None` where it is missing or empty, as after a kubelet restart.
    pub filesystem: Option<Filesystem>,
    /// `kubernetes.io/readwrite` is `ro`.
    pub read_only: bool,
    /// `kubernetes.io/pvc.namespace`: whose claim a provisioner provisions for.
    pub claim_namespace: Option<String>,
    /// What the author of the volume wrote: every key that Kubernetes did not.
    pub options: Options,
}

/// The pod a volume is mounted for; only `mount` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// `kubernetes.io/pod.namespace`.
    pub namespace: String,
    /// `kubernetes.io/pod.name`.
    pub name: String,
    /// `kubernetes.io/pod.uid`.
    pub uid: String,
}

/// Everything `mount` is told.
#[derive(Debug)]
pub struct MountRequest {
    /// The directory of the pod, made by kubelet.
    pub dir: PathBuf,
    /// The volume.
    pub volume: Volume,
    /// The pod; absent when a person or a test calls without one.
    pub pod: Option<Pod>,
    /// `kubernetes.io/secret/KEY`, decoded.
    pub secrets: BTreeMap<String, Secret>,
    /// `kubernetes.io/fsGroup` (to 1.14) or `kubernetes.io/mounterArgs.FsGroup` (since 1.15).
    pub fs_group: Option<u32>,
}

/// The sizes of an expansion, in bytes as kubelet writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resize {
    /// At least this much is asked for.
    pub new: Bytes,
    /// The size the claim had before.
    pub old: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dns_subdomains() {
        let long = "a".repeat(254);
        for name in ["a", "pvc-0b1", "data.claims", "0", "a.b-c.9"] {
            assert!(VolumeName::parse(name).is_ok(), "{name:?}");
        }
        for name in [
            "", ".", "..", "a/b", "../a", "a..b", ".a", "a.", "-a", "a-", "A", "a\n", "a\0", "a b",
            "ä", &long,
        ] {
            assert!(VolumeName::parse(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn only_a_dotted_name_is_beyond_pods() {
        assert!(VolumeName::parse("data.claims").unwrap().is_beyond_pods());
        assert!(!VolumeName::parse("data").unwrap().is_beyond_pods());
    }
}
