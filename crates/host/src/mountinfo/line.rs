//! One line of a mount table, parsed on demand.

use super::Mount;
use crate::block::number::DeviceNumber;
use std::{ffi::OsString, os::unix::ffi::OsStringExt, path::PathBuf};

/// A line with the first fields of a mount.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    pub(super) id: u64,
    parent: u64,
    pub(super) number: DeviceNumber,
    root: &'a [u8],
    mount_point: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Line<'a> {
    /// Parses the first fields. `None` if the line is not a mount.
    pub(super) fn read(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |&c| c == b' ');
        let id = number(fields.next()?)?;
        let parent = number(fields.next()?)?;
        let device = fields.next()?;
        let colon = device.iter().position(|&c| c == b':')?;
        let major = number(&device[..colon])?.try_into().ok()?;
        let minor = number(&device[colon + 1..])?.try_into().ok()?;
        Some(Line {
            id,
            parent,
            number: DeviceNumber { major, minor },
            root: fields.next()?,
            mount_point: fields.next()?,
            rest: fields.next().unwrap_or_default(),
        })
    }

    /// See [`Mount::root`].
    #[must_use]
    pub fn root(&self) -> PathBuf {
        unescape(self.root).into()
    }

    /// See [`Mount::mount_point`].
    #[must_use]
    pub fn mount_point(&self) -> PathBuf {
        unescape(self.mount_point).into()
    }

    /// See [`Mount::is_of`].
    #[must_use]
    pub fn is_of(&self, device: DeviceNumber) -> bool {
        // Only a Btrfs has, instead of its device's number, an anonymous one with major number 0.
        self.number == device || (self.number.major == 0 && self.mount().is_of(device))
    }

    /// Parses the whole line.
    #[must_use]
    pub fn mount(&self) -> Mount {
        let mut fields = self.rest.split(|&c| c == b' ');
        let options = fields.next().unwrap_or_default();
        let read_only = has_option(options, b"ro");
        let is_confined = has_option(options, b"nosuid") && has_option(options, b"nodev");
        // Any number of optional fields, including ones unknown to date, and then a hyphen.
        let shared = fields
            .by_ref()
            .take_while(|field| *field != b"-")
            .fold(false, |shared, field| {
                shared | field.starts_with(b"shared:")
            });
        let mut last = || fields.next().unwrap_or_default();
        let filesystem = unescape(last()).to_string_lossy().into_owned();
        let source = unescape(last());
        let options = last();
        let superblock_read_only = has_option(options, b"ro");
        let takes_no_writes = has_option(options, b"emergency_ro");
        Mount {
            id: self.id,
            parent: self.parent,
            number: self.number,
            root: self.root(),
            mount_point: self.mount_point(),
            read_only,
            is_confined,
            shared,
            filesystem,
            source,
            superblock_read_only,
            takes_no_writes,
        }
    }
}

fn number(text: &[u8]) -> Option<u64> {
    // `u64::from_str` would accept a plus sign.
    if !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn has_option(options: &[u8], option: &[u8]) -> bool {
    options.split(|&c| c == b',').any(|found| found == option)
}

/// Undoes the kernel's `mangle`, which writes space, tab, newline, backslash and `#` as a backslash and three octal
/// digits. Anything else is unchanged.
pub(super) fn unescape(text: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        match after {
            [
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ] if first == b'\\' => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}
