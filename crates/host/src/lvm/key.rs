//! The key of a pool, which only root reads.

use crate::{PoolId, VolumeId, random, volume_id::half_digest};
use flexvol_sdk::{Handle, Result};
use std::fmt;

/// 128 random bits in the tag that makes a group, or a thin pool, a pool.
///
/// What LVM keeps only root reads, but the marks of volumes are words of its command line, which every
/// process of the node may read, and the service manager logs them. So they have the pool's id, which is
/// derived from the key, and their handles sealed. The key itself is such a word only when
/// a pool is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PoolKey(Handle);

impl PoolKey {
    pub(super) fn random() -> Result<Self> {
        random::handle().map(PoolKey)
    }

    /// Reads 32 lower-case hexadecimal digits.
    pub(super) fn parse(text: &str) -> Result<Self> {
        // It is no less secret than a handle, and of the same form.
        Handle::parse(text).map(PoolKey)
    }

    pub(super) fn text(&self) -> String {
        self.0.to_string()
    }

    /// Which pool this is the key of.
    #[must_use]
    pub fn id(&self) -> PoolId {
        PoolId::from_bytes(half_digest(&[b"flexvol pool id", self.0.as_bytes()]))
    }

    /// A handle as it stands in the mark of the volume with this id, and what stands there as the
    /// handle: each volume has a pad of its own, and nothing but its one handle is sealed with it.
    #[must_use]
    pub fn sealed(&self, handle: &Handle, volume: &VolumeId) -> Handle {
        let seal = b"flexvol sealed handle";
        let mut bytes = half_digest(&[seal, self.0.as_bytes(), volume.as_bytes()]);
        let handle = handle.as_bytes();
        bytes.iter_mut().zip(handle).for_each(|(to, it)| *to ^= it);
        Handle::from_bytes(bytes)
    }
}

impl fmt::Debug for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the key of pool ")?;
        fmt::Display::fmt(&self.id(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pools_key_opens_what_was_sealed() {
        let key = PoolKey::parse("00112233445566778899aabbccddeeff").unwrap();
        let other = PoolKey::parse("10112233445566778899aabbccddeeff").unwrap();
        let handle = Handle::parse("ffeeddccbbaa99887766554433221100").unwrap();
        let id = VolumeId::of(&handle);
        let sealed = key.sealed(&handle, &id);
        assert_eq!(key.sealed(&sealed, &id), handle);
        assert_ne!(sealed, handle);
        assert_ne!(other.sealed(&sealed, &id), handle);
        let another = VolumeId::of(&sealed);
        assert_ne!(key.sealed(&sealed, &another), handle);
        assert_ne!(key.id().to_string(), key.text());
    }
}
