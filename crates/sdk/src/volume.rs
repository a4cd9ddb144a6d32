//! Descriptions of volumes, as callers pass them.

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

    /// Returns the kernel's name, which is also Kubernetes' `fsType`.
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

/// A `fsType` as the author of a volume wrote it. The driver decides which ones it accepts: `nfs` and `cifs` as
/// well as those of [`Filesystem`].
///
/// 1 to 63 of `a-z A-Z 0-9 . _ -`, beginning with a letter or digit, so that it can never be mistaken for a path or
/// an option.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FsType(String);

impl FsType {
    /// Checks and wraps a name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for text that cannot be the name of a file system.
    pub fn parse(text: &str) -> Result<Self> {
        let bytes = text.as_bytes();
        let allowed = |c: &u8| c.is_ascii_alphanumeric() || b"._-".contains(c);
        if bytes.first().is_some_and(u8::is_ascii_alphanumeric)
            && bytes.len() <= 63
            && bytes.iter().all(allowed)
        {
            return Ok(FsType(text.to_owned()));
        }
        Err(Error::new(
            ErrorKind::Invalid,
            "the file system that is asked for is no name of one (1 to 63 of a-z, 0-9, '.', '_' and '-')",
        ))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the file system, for drivers of block devices that grow.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for any name outside [`Filesystem`].
    pub fn known(&self) -> Result<Filesystem> {
        self.0.parse()
    }
}

impl From<Filesystem> for FsType {
    fn from(filesystem: Filesystem) -> Self {
        FsType(filesystem.as_str().to_owned())
    }
}

impl fmt::Display for FsType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a persistent volume, or of a pod's inline volume.
///
/// A DNS subdomain as Kubernetes validates it: 1 to 253 of `a-z 0-9 - .`, each label beginning and ending with a
/// letter or digit. The author of a pod chooses the name of an inline volume, so a name never identifies a volume.
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

    /// Whether this cannot be the name of an inline volume. Such names are DNS labels, which have no dot
    /// (Kubernetes `ValidateVolumes`); names of persistent volumes may have one.
    #[must_use]
    pub fn cannot_be_inline(&self) -> bool {
        self.0.contains('.')
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The JSON argument of a callout, without the keys that Kubernetes itself writes.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Volume {
    /// `kubernetes.io/pvOrVolumeName`; `None` if the callout is about no volume (`capacity`).
    pub name: Option<VolumeName>,
    /// `kubernetes.io/fsType`; `None` if missing or empty, as after a restart of kubelet.
    pub filesystem: Option<FsType>,
    /// Whether `kubernetes.io/readwrite` is `ro`.
    pub read_only: bool,
    /// `kubernetes.io/pvc.namespace`: the namespace of the claim that is provisioned.
    pub claim_namespace: Option<String>,
    /// The options of the volume's author: every key that Kubernetes did not write.
    pub options: Options,
}

impl Volume {
    /// Returns the requested file system, for drivers of block devices that grow.
    ///
    /// # Errors
    /// As [`FsType::known`].
    pub fn known_filesystem(&self) -> Result<Option<Filesystem>> {
        self.filesystem.as_ref().map(FsType::known).transpose()
    }
}

/// The pod for which a volume is mounted; only `mount` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pod {
    /// `kubernetes.io/pod.namespace`.
    pub namespace: String,
    /// `kubernetes.io/pod.name`.
    pub name: String,
    /// `kubernetes.io/pod.uid`.
    pub uid: String,
    /// `kubernetes.io/serviceAccount.name`; `None` for a static pod.
    pub service_account: Option<String>,
}

/// The arguments of `mount`.
#[derive(Debug)]
#[non_exhaustive]
pub struct MountRequest {
    /// The pod's directory, which kubelet has made.
    pub dir: PathBuf,
    /// The volume.
    pub volume: Volume,
    /// The pod; `None` when a user or a test calls without one.
    pub pod: Option<Pod>,
    /// `kubernetes.io/secret/KEY`, decoded.
    pub secrets: BTreeMap<String, Secret>,
    /// `kubernetes.io/fsGroup` (to 1.14) or `kubernetes.io/mounterArgs.FsGroup` (since 1.15).
    pub fs_group: Option<u32>,
}

/// The sizes of an expansion, in bytes as kubelet writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resize {
    /// The requested size; the volume may become larger.
    pub new: Bytes,
    /// What the caller last knew. The storage may have more.
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
    fn every_drivers_file_system_has_a_name_and_some_are_known() {
        for name in ["nfs4", "cifs", "9p", "ntfs-3g", "fuse.sshfs", "XFS"] {
            let text = FsType::parse(name).unwrap().known().unwrap_err();
            let expected = format!("file system {name:?} is not one of ext3, ext4, xfs, btrfs");
            assert_eq!(text.to_string(), expected);
        }
        for filesystem in Filesystem::ALL {
            let named = FsType::from(filesystem);
            assert_eq!(FsType::parse(named.as_str()).unwrap(), named);
            assert_eq!(named.known().unwrap(), filesystem);
        }
        for name in [
            "",
            "-o",
            ".",
            "..",
            "../x",
            "a/b",
            "a b",
            "a,b",
            "a\n",
            "a\0",
            "ä",
            &"a".repeat(64),
        ] {
            assert!(FsType::parse(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn only_a_dotted_name_is_beyond_pods() {
        assert!(VolumeName::parse("data.claims").unwrap().cannot_be_inline());
        assert!(!VolumeName::parse("data").unwrap().cannot_be_inline());
    }
}
