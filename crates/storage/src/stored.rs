//! A volume in its backend: code that all kinds of volumes share.

use crate::{
    backend::Backend,
    kind::CallContext,
    mark::{Mark, State},
    observed::Asset,
};
use flexvol_host::VolumeId;
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};

/// Fails for a copy, which has the original's mark.
pub(crate) fn expect_own(mark: &Mark, volume: &VolumeId, backend: &dyn Backend) -> Result<()> {
    if mark.is_of(volume, backend.catalog().id()?) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Conflict,
        "the volume is a copy of another one; take it over with `flexvol adopt`",
    ))
}

/// A volume and its backend; `None` while the pool is missing.
pub(crate) struct Stored<'a, B> {
    pub(crate) backend: Option<&'a B>,
    pub(crate) volume: VolumeId,
}

impl<'a, B: Backend> Stored<'a, B> {
    pub(crate) fn backend(&self) -> Result<&'a B> {
        self.backend.ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                "the volume's pool is not mounted on this node",
            )
        })
    }

    /// Returns the storage, after a check that its mark names this volume and this pool.
    pub(crate) fn asset(&self) -> Result<Option<Asset>> {
        let Some(backend) = self.backend else {
            return Ok(None);
        };
        let asset = backend.find(&self.volume)?;
        if let Some(mark) = asset.as_ref().and_then(|asset| asset.mark.as_ref()) {
            expect_own(mark, &self.volume, backend)?;
        }
        Ok(asset)
    }

    pub(crate) fn mark(&self) -> Result<Mark> {
        self.asset()?
            .and_then(|asset| asset.mark)
            .ok_or_else(|| Error::new(ErrorKind::Conflict, "the volume lost its mark meanwhile"))
    }

    pub(crate) fn set_mark(&self, mark: &Mark) -> Result<()> {
        self.backend()?.set_mark(&self.volume, mark)
    }

    pub(crate) fn create(&self, size: Bytes, state: State, context: &CallContext) -> Result<()> {
        let backend = self.backend()?;
        let new = context
            .new
            .as_ref()
            .ok_or_else(|| Error::new(ErrorKind::Bug, "nothing is known of the volume to make"))?;
        let mark = Mark {
            asked: new.filesystem,
            ..Mark::blank(
                new.handle,
                backend.catalog().id()?,
                Some(new.name.clone()),
                new.namespace.clone(),
            )
        };
        backend.create(&self.volume, size, &mark.with_state(state))
    }

    pub(crate) fn grow(&self, to: Bytes) -> Result<()> {
        let size = self.asset()?.map_or(Bytes(0), |asset| asset.size);
        self.backend()?.grow(&self.volume, to).map_err(|error| {
            error.context(format_args!(
                "{to:#} was asked for, the volume has {size:#}"
            ))
        })
    }

    pub(crate) fn destroy(&self) -> Result<()> {
        self.backend()?.destroy(&self.volume)
    }
}
