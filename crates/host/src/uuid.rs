//! UUIDs of file systems.

use crate::random;
use flexvol_sdk::{Error, ErrorKind, Result};
use std::fmt;

/// A UUID: 16 bytes in the order of the superblock (RFC 9562 byte order, which ext4, XFS and Btrfs use). The text form
/// is 36 lower-case characters, `8-4-4-4-12`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Uuid([u8; 16]);

impl Uuid {
    /// Wraps the 16 bytes of a superblock.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Uuid(bytes)
    }

    /// Returns the 16 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns a new version 4 UUID from the kernel's random number generator.
    ///
    /// # Errors
    /// When `getrandom(2)` fails.
    pub fn random() -> Result<Self> {
        let mut bytes = random::bytes()?;
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Ok(Uuid(bytes))
    }

    /// Parses the text form. Accepts upper case, as tools write both.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for any other text.
    pub fn parse(text: &str) -> Result<Self> {
        let invalid = || Error::new(ErrorKind::Invalid, format!("{text:?} is not a UUID"));
        if text.len() != 36 || !text.is_ascii() {
            return Err(invalid());
        }
        let mut digits = Vec::with_capacity(32);
        for (place, c) in text.chars().enumerate() {
            match (place, c.to_digit(16)) {
                (8 | 13 | 18 | 23, _) if c == '-' => {}
                (8 | 13 | 18 | 23, _) | (_, None) => return Err(invalid()),
                (_, Some(digit)) => digits.push(u8::try_from(digit).map_err(|_| invalid())?),
            }
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Ok(Uuid(bytes))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, byte) in self.0.iter().enumerate() {
            if matches!(place, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn random_uuids_are_version_4_and_differ() {
        let (one, two) = (Uuid::random().unwrap(), Uuid::random().unwrap());
        assert_ne!(one, two);
        assert_eq!(one.to_string().as_bytes()[14], b'4');
        assert!(matches!(one.to_string().as_bytes()[19], b'8'..=b'b'));
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "0011223344556677-8899-aabb-ccddeeff00",
            "00112233-4455-6677-8899-aabbccddeef",
            "00112233-4455-6677-8899-aabbccddeefg",
            "00112233x4455-6677-8899-aabbccddeeff",
            "00112233-4455-6677-8899-aabbccddee-f",
            "ä0112233-4455-6677-8899-aabbccddeef",
        ] {
            assert!(Uuid::parse(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn text_and_bytes_agree(bytes: [u8; 16]) {
            let uuid = Uuid::from_bytes(bytes);
            prop_assert_eq!(Uuid::parse(&uuid.to_string()).unwrap(), uuid);
            prop_assert_eq!(Uuid::parse(&uuid.to_string().to_uppercase()).unwrap(), uuid);
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = Uuid::parse(&text);
        }
    }
}
