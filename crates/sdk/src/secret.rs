//! Values that must not be printed.

use std::fmt;

/// A secret of a pod. It has no `Display`, and `Debug` hides its content.
pub struct Secret(Vec<u8>);

impl Secret {
    /// Wraps secret bytes, for callers of drivers and for tests.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Secret(bytes.into())
    }

    /// Returns the bytes. There is no other access to them.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Decodes the value of `kubernetes.io/secret/KEY`: padded standard base64 (RFC 4648 §4) as Go's
    /// `base64.StdEncoding` writes it, without line breaks and with zero spare bits.
    pub(crate) fn decode(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        if !text.len().is_multiple_of(4) {
            return None;
        }
        let padding = text.iter().rev().take_while(|&&c| c == b'=').count();
        let digits = &text[..text.len().checked_sub(padding.min(2))?];
        let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
        for group in digits.chunks(4) {
            let mut bits = 0u32;
            for &digit in group {
                let digit = ALPHABET.iter().position(|&c| c == digit)?;
                bits = bits << 6 | u32::try_from(digit).ok()?;
            }
            bits <<= 6 * (4 - group.len());
            let [_, decoded @ ..] = bits.to_be_bytes();
            let (kept, spare) = decoded.split_at(group.len() - 1);
            if spare.iter().any(|&byte| byte != 0) {
                return None;
            }
            bytes.extend_from_slice(kept);
        }
        Some(Secret(bytes))
    }

    /// Encodes the bytes as callers pass them.
    pub(crate) fn encode(&self) -> String {
        let mut text = String::with_capacity(self.0.len().div_ceil(3) * 4);
        for group in self.0.chunks(3) {
            let mut bytes = [0; 4];
            bytes[1..=group.len()].copy_from_slice(group);
            let bits = u32::from_be_bytes(bytes);
            for place in 0..4 {
                let digit = (bits >> (18 - 6 * place)) & 0x3f;
                text.push(if place <= group.len() {
                    char::from(ALPHABET[digit as usize])
                } else {
                    '='
                });
            }
        }
        text
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(Secret::new(bytes).encode(), text);
            assert_eq!(Secret::decode(text).unwrap().expose(), bytes.as_bytes());
        }
    }

    #[test]
    fn other_forms_of_base64_are_refused() {
        for text in [
            "Zg",
            "Zg=",
            "Z===",
            "====",
            "Zh==",
            "Zm9=",
            "Zg==Zg==",
            "Zm8=\n",
            "Zm9v\n",
            "Zm 9",
            "Zm-_",
            "Zg==\0\0\0\0",
            "=Zg=",
            "Zgé",
        ] {
            assert!(Secret::decode(text).is_none(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_value_survives_the_journey(bytes: Vec<u8>) {
            let text = Secret::new(bytes.clone()).encode();
            let decoded = Secret::decode(&text).unwrap();
            prop_assert_eq!(decoded.expose(), &bytes[..]);
        }

        #[test]
        fn nothing_panics(text in ".*") {
            let _ = Secret::decode(&text);
        }
    }
}
