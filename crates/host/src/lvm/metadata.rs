//! The metadata area of a group. Metadata are text, and the area cannot be enlarged.

use super::percent::Percent;
use flexvol_sdk::Bytes;

/// Space of a group's metadata area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Total size.
    pub size: Bytes,
    /// Free space.
    pub free: Bytes,
}

impl Metadata {
    /// Returns how full the area is.
    #[must_use]
    pub fn taken(&self) -> Percent {
        self.taken_with(Bytes(0))
    }

    pub(super) fn taken_with(&self, more: Bytes) -> Percent {
        Percent::taken(self.free.saturating_sub(more).0, self.size.0)
    }

    /// Whether the area is more than half full. The group cannot get a larger one, so it needs fewer volumes.
    #[must_use]
    pub fn is_half_full(&self) -> bool {
        self.taken() > Percent::of_hundred(50)
    }

    /// Space that deleted but kept volumes may take in the area: a third once it is half full; `None` before.
    #[must_use]
    pub fn max_kept(&self) -> Option<Bytes> {
        self.is_half_full().then_some(Bytes(self.size.0 / 3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(taken: u64) -> Metadata {
        Metadata {
            size: Bytes(512 << 10),
            free: Bytes((512 << 10) * (100 - taken) / 100),
        }
    }

    #[test]
    fn what_kept_volumes_take_of_the_metadata_matters_only_where_they_are_half_full() {
        assert_eq!(metadata(1).max_kept(), None);
        assert_eq!(metadata(49).max_kept(), None);
        assert_eq!(metadata(52).max_kept(), Some(Bytes((512 << 10) / 3)));
    }
}
