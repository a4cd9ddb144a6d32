//! The state of thin pools.

use super::{group_or_thin_pool::GroupOrThinPool, percent::Percent, report::ThinPoolRow};
use flexvol_sdk::{Error, ErrorKind, Result};

/// The state of a thin pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThinPool {
    /// Fill level of its data; `None` while the pool is not active.
    pub data: Option<Percent>,
    /// Fill level of its metadata; `None` while the pool is not active. No block can be allocated when it is full.
    pub metadata: Option<Percent>,
    /// Whether writes to a full pool fail at once instead of waiting for a minute.
    pub fails_when_full: bool,
    /// Whether blocks are zeroed when they are allocated to a volume.
    pub zeroes: bool,
    /// LVM's health status; empty when the pool is healthy.
    pub health: String,
}

impl GroupOrThinPool {
    /// Reads the state of the thin pool.
    ///
    /// # Errors
    /// As for [`GroupOrThinPool::look`].
    pub fn thin_pool(&self) -> Result<ThinPool> {
        let name = self.thin_pool.as_deref().unwrap_or_default();
        let path = self.path(name);
        let found: Vec<ThinPoolRow> = self.ask("lvs", ThinPoolRow::FIELDS, &[], &path)?;
        let row = found.into_iter().next().ok_or_else(|| self.missing())?;
        Ok(ThinPool {
            data: Percent::parse(&row.data_percent),
            metadata: Percent::parse(&row.metadata_percent),
            fails_when_full: row.lv_when_full == "error",
            zeroes: row.zero == "zero",
            health: row.lv_health_status,
        })
    }
}

impl ThinPool {
    /// Returns an error for a pool whose volumes show data that other volumes wrote before.
    ///
    /// # Errors
    /// [`ErrorKind::Configuration`] when the pool does not zero blocks.
    pub fn expect_zeroes(&self) -> Result<()> {
        if self.zeroes {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Configuration,
            "the thin pool does not zero the blocks it gives to volumes; run `lvchange -Zy` on it",
        ))
    }
}
