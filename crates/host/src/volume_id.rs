//! Names of volumes on a node.

use flexvol_sdk::{Error, ErrorKind, Handle, Result};
use sha2::{Digest, Sha256};
use std::fmt;

/// The id of a volume, which names its storage, devices, mounts and locks on the node.
///
/// Every process of the node can read names of images and logical volumes in sysfs and mount tables, but a handle is
/// secret. So names contain this id instead: the first half of the SHA-256 of the handle's text, from which the handle
/// cannot be computed. As text, 32 lower-case hexadecimal digits: `printf %s HANDLE | sha256sum | head -c 32`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId([u8; 16]);

impl VolumeId {
    /// Returns the id of the volume with this handle.
    #[must_use]
    pub fn of(handle: &Handle) -> Self {
        VolumeId(half_digest(&[handle.to_string().as_bytes()]))
    }

    /// Parses 32 lower-case hexadecimal digits.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for any other text.
    pub fn parse(text: &str) -> Result<Self> {
        match Handle::parse(text) {
            Ok(bits) => Ok(VolumeId(*bits.as_bytes())),
            Err(_) => Err(Error::new(
                ErrorKind::Invalid,
                "a volume id is 32 lower-case hexadecimal digits",
            )),
        }
    }

    /// Returns the 16 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl From<&Handle> for VolumeId {
    fn from(handle: &Handle) -> Self {
        VolumeId::of(handle)
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Handle::from_bytes(self.0).fmt(f)
    }
}

impl fmt::Debug for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the first half of the SHA-256 of all parts.
#[must_use]
pub fn half_digest(parts: &[&[u8]]) -> [u8; 16] {
    let mut sha = Sha256::new();
    parts.iter().for_each(|part| sha.update(part));
    let mut half = [0; 16];
    half.iter_mut()
        .zip(sha.finalize())
        .for_each(|(to, byte)| *to = byte);
    half
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_half_of_the_sha_256_of_the_handles_text() {
        // printf %s 00112233445566778899aabbccddeeff | sha256sum | head -c 32
        let handle = Handle::parse("00112233445566778899aabbccddeeff").unwrap();
        let id = VolumeId::of(&handle);
        assert_eq!(id.to_string(), "5947d7c33d783f94b3b4c1a96ebc8991");
        assert_eq!(VolumeId::parse(&id.to_string()).unwrap(), id);
        assert!(VolumeId::parse("../../../../../../../etc/shadow0").is_err());
    }
}
