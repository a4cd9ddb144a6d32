//! How a thin pool is.

use super::{group_or_thin_pool::GroupOrThinPool, percent::Percent, report::ThinPoolRow};
use flexvol_sdk::{Error, ErrorKind, Result};

/// The state of a thin pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThinPool {
    /// How much of its data is taken; `None` while it is not active.
    pub data: Option<Percent>,
    /// The same of its metadata, without which no block can be given out.
    pub metadata: Option<Percent>,
    /// Writers to a full pool get an error and do not wait for a minute first.
    pub fails_when_full: bool,
    /// Blocks are zeroed when they are given to a volume.
    pub zeroes: bool,
    /// What LVM says is wrong with it; empty where nothing is.
    pub health: String,
}

impl GroupOrThinPool {
    /// The state of the thin pool.
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
    /// Refuses a pool whose volumes show what others wrote before.
    ///
    /// # Errors
    /// [`ErrorKind::Configuration`].
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
