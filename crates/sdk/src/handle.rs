//! The identity of a volume.

use crate::{Error, ErrorKind, Result};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt;

/// 128 random bits that identify a volume, made when it is provisioned.
///
/// A volume is found by its handle, never by its name: the author of a pod chooses the name of an inline volume and
/// could choose another tenant's, but cannot guess a handle. The text form is exactly 32 lower-case hexadecimal
/// digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle([u8; 16]);

impl Handle {
    /// Wraps 16 bytes that [`Handle::random`] made before.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Handle(bytes)
    }

    /// Makes a new handle: 128 bits from the kernel's random number generator.
    ///
    /// # Errors
    /// When `getrandom(2)` fails.
    pub fn random() -> Result<Self> {
        let mut bytes = [0; 16];
        // A read of up to 256 bytes is never short (random(7)).
        getrandom(&mut bytes, GetRandomFlags::empty())
            .map_err(|error| Error::system("make a random handle", error))?;
        Ok(Handle(bytes))
    }

    /// Returns the 16 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Parses 32 lower-case hexadecimal digits.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for anything else. The message does not repeat the text, because knowing a handle
    /// gives access to its volume.
    pub fn parse(text: &str) -> Result<Self> {
        let digit = |c: u8| match c {
            b'0'..=b'9' => Some(c - b'0'),
            b'a'..=b'f' => Some(c - b'a' + 10),
            _ => None,
        };
        let invalid = || {
            Error::new(
                ErrorKind::Invalid,
                "a handle is 32 lower-case hexadecimal digits",
            )
        };
        let text: &[u8; 32] = text.as_bytes().try_into().map_err(|_| invalid())?;
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let (high, low) = digit(pair[0]).zip(digit(pair[1])).ok_or_else(invalid)?;
            *byte = high << 4 | low;
        }
        Ok(Handle(bytes))
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_handles_differ() {
        assert_ne!(Handle::random().unwrap(), Handle::random().unwrap());
    }

    #[test]
    fn text_and_bytes_agree() {
        let text = "00112233445566778899aabbccddeeff";
        let handle = Handle::parse(text).unwrap();
        assert_eq!(handle.as_bytes()[15], 0xff);
        assert_eq!(handle.to_string(), text);
    }

    #[test]
    fn only_32_lower_case_digits_are_a_handle() {
        for text in [
            "",
            "00112233445566778899aabbccddeef",
            "00112233445566778899aabbccddeeff0",
            "00112233445566778899AABBCCDDEEFF",
            "../../../../../../../etc/shadow0",
            "+0112233445566778899aabbccddeeff",
        ] {
            assert!(
                Handle::parse(text).is_err(),
                "{text:?} was taken for a handle"
            );
        }
    }
}
