//! Settings of a driver and its pools, made by the administrator.

use flexvol_host::Reserve;
use flexvol_sdk::{Bytes, Error, ErrorKind, Filesystem, Result};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Where this copy of the driver runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// On a node, next to the storage.
    #[default]
    Node,
    /// On a control plane host, which sees nothing of the node's storage.
    Controller,
}

/// When volumes grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Growth {
    /// Also while pods use them.
    #[default]
    Online,
    /// Only while no pod uses them.
    Offline,
}

/// Whether a persistent volume's name may identify it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Names {
    /// Never.
    #[default]
    Never,
    /// If the name has a dot, which the name of a pod's inline volume cannot have.
    Dotted,
}

/// Which pods may mount the volumes of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Namespaces {
    /// Those in the namespace of the claim a volume was made for.
    #[default]
    Claim,
    /// All pods that know the handle.
    Any,
}

/// Settings of a whole driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Whether Kubernetes attaches volumes before it mounts them.
    pub attach: bool,
    /// Where this copy runs.
    pub role: Role,
    /// When volumes grow.
    pub growth: Growth,
    /// Whether names may identify volumes.
    pub names: Names,
}

/// Settings of one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// Which pods may mount its volumes.
    pub namespaces: Namespaces,
    /// The file system of a volume that asks for none.
    pub filesystem: Filesystem,
    /// The size limit of a single volume.
    pub largest: Option<Bytes>,
    /// The shortest time for which a deleted volume is kept; `None` if the configuration that says it was lost.
    pub keep_deleted: Option<Duration>,
    /// The most of the pool that all kept volumes may take together, by their sizes; `None` allows all of it.
    pub keep_at_most: Option<Reserve>,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            namespaces: Namespaces::Claim,
            filesystem: Filesystem::Xfs,
            largest: None,
            keep_deleted: Some(Duration::ZERO),
            keep_at_most: None,
        }
    }
}

impl Policy {
    /// Returns the size of a volume for which `asked` was requested, in whole mebibytes.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for zero, on overflow and for more than the pool allows.
    pub fn admit(&self, asked: Bytes) -> Result<Bytes> {
        let size = in_mebibytes(asked)?;
        self.expect_allowed(size)?;
        Ok(size)
    }

    pub(crate) fn expect_allowed(&self, size: Bytes) -> Result<()> {
        match self.largest {
            Some(largest) if size > largest => Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "{size:#} was asked for, and this pool allows at most {largest:#} a volume"
                ),
            )),
            _ => Ok(()),
        }
    }
}

/// Rounds up to whole mebibytes, so that sectors, blocks and extents divide the size.
pub(crate) fn in_mebibytes(asked: Bytes) -> Result<Bytes> {
    match asked.round_up(Bytes::MIB) {
        Some(size) if size > Bytes(0) && i64::try_from(size.0).is_ok() => Ok(size),
        _ => Err(Error::new(
            ErrorKind::Invalid,
            format!("a volume cannot have {asked} bytes"),
        )),
    }
}
