//! The secret key of a pool.

use crate::{PoolId, VolumeId, volume_id::half_digest};
use flexvol_sdk::{Handle, Result};
use std::fmt;

/// The key of a pool: 128 random bits in the tag that makes a group or thin pool a pool.
///
/// Only root can read LVM's metadata. But marks of volumes are arguments of LVM commands, which every process of the
/// node can read and the service manager logs. So a mark has the pool's id, which is derived from the key, and the
/// volume's handle sealed with the key. The key itself is such an argument only when the pool is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PoolKey(Handle);

impl PoolKey {
    pub(super) fn random() -> Result<Self> {
        Handle::random().map(PoolKey)
    }

    /// Reads 32 lower-case hexadecimal digits.
    pub(super) fn parse(text: &str) -> Result<Self> {
        // The key is as secret as a handle, and has the same form.
        Handle::parse(text).map(PoolKey)
    }

    pub(super) fn text(&self) -> String {
        self.0.to_string()
    }

    /// Returns the id of the pool with this key.
    #[must_use]
    pub fn id(&self) -> PoolId {
        PoolId::from_bytes(half_digest(&[b"flexvol pool id", self.0.as_bytes()]))
    }

    /// Seals the handle of a volume for its mark, or unseals it: XOR with a pad. Each volume has its own pad, which
    /// seals only that volume's one handle.
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
