//! Checksums in place of objects whose text is not needed, but only whether it has changed.

use super::{Prune, State};
use crate::api::well_known::{NO_BYTES, checksum_with};
use std::collections::BTreeMap;

/// The only member of an object of which a checksum was kept. No storage class has a parameter without a name
/// (`validateParameters` in `pkg/apis/storage/validation`).
const CHECKSUM: &str = "";

/// Separates a name from its value: no byte of UTF-8.
const SEPARATOR: u8 = 0xff;

/// Returns the checksum of an object of strings, whether it was read whole or only as its checksum. It does not depend
/// on the order of the members.
pub(crate) fn checksum_of(members: &BTreeMap<String, String>) -> u64 {
    let kept = members
        .get(CHECKSUM)
        .and_then(|sum| u64::from_str_radix(sum, 16).ok());
    kept.unwrap_or_else(|| {
        let sums = members.iter().map(|(name, value)| {
            let text = name.bytes().chain([SEPARATOR]).chain(value.bytes());
            text.fold(NO_BYTES, checksum_with)
        });
        sums.fold(0, u64::wrapping_add)
    })
}

/// The checksum of an object that is being read.
pub(super) struct Members {
    sum: u64,
    /// Checksum of the current member, if there is one.
    member: Option<u64>,
    depth: usize,
    text: bool,
    /// The escape sequence that is being read.
    escape: Vec<u8>,
}

impl Members {
    pub fn new() -> Self {
        Members {
            sum: 0,
            member: None,
            depth: 0,
            text: false,
            escape: Vec::new(),
        }
    }

    /// Adds the next byte of the text. Returns whether the object ends with it.
    fn next(&mut self, byte: u8) -> bool {
        if self.text {
            self.in_text(byte);
            return false;
        }
        match byte {
            b'"' => {
                self.text = true;
                self.member.get_or_insert(NO_BYTES);
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 0 {
                    self.end_member();
                    return true;
                }
            }
            b',' => self.end_member(),
            b':' => self.add(SEPARATOR),
            _ if byte.is_ascii_whitespace() => {}
            _ => self.add(byte),
        }
        false
    }

    fn in_text(&mut self, byte: u8) {
        match byte {
            b'\\' if self.escape.is_empty() => self.escape.push(byte),
            b'"' if self.escape.is_empty() => self.text = false,
            _ if self.escape.is_empty() => self.add(byte),
            _ => {
                self.escape.push(byte);
                let is_code = self.escape.get(1) == Some(&b'u');
                if self.escape.len() == if is_code { 6 } else { 2 } {
                    self.end_escape();
                }
            }
        }
    }

    fn end_escape(&mut self) {
        let escape = std::mem::take(&mut self.escape);
        let text = [b"\"", &*escape, b"\""].concat();
        // The API server writes no pairs of escapes: a half of one counts as it is written.
        let read = serde_json::from_slice::<String>(&text);
        let bytes = read.map_or(escape, String::into_bytes);
        bytes.into_iter().for_each(|byte| self.add(byte));
    }

    fn add(&mut self, byte: u8) {
        let before = self.member.unwrap_or(NO_BYTES);
        self.member = Some(checksum_with(before, byte));
    }

    fn end_member(&mut self) {
        let member = self.member.take().unwrap_or(0);
        self.sum = self.sum.wrapping_add(member);
    }
}

impl Prune {
    pub(super) fn begin_checksum(&mut self) {
        self.members = Members::new();
        self.state = State::Checksum;
    }

    /// Adds a byte of an object to its checksum, which is written at its end.
    pub(super) fn checksum(&mut self, byte: u8, out: &mut Vec<u8>) -> usize {
        if self.members.next(byte) {
            self.state = State::Between;
            let text = format!(r#"{{"{CHECKSUM}":"{:016x}"}}"#, self.members.sum);
            self.text = text.into_bytes();
            self.put_text(false, out);
            self.ended();
        }
        1
    }
}
