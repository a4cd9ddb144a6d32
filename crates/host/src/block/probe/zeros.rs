//! Proves that parts of a device are zero.

use super::{
    BUFFER,
    direct::{ALIGNMENT, Buffer, Direct, changed, image_length},
};
use crate::block::device::Device;
use flexvol_sdk::{Error, Result};
use rustix::fs::{Advice, SeekFrom, fadvise, seek};
use std::{fs::File, os::unix::fs::FileExt};

/// Whether every byte from `start` on is zero. Of an image only the ranges with data are read, of other devices all of
/// it. The caller has synced the device.
pub(super) fn all_zero_from(
    device: &Device,
    start: u64,
    direct: &Direct<'_>,
    buffer: &mut Buffer,
) -> Result<bool> {
    let Some(image) = device.backing() else {
        // Reads begin at whole blocks of the device.
        let aligned = start - start % ALIGNMENT as u64;
        return all_zero(aligned, direct.size.0, |at, length| {
            let bytes = direct.read(buffer, at, length)?;
            let before = usize::try_from(start.saturating_sub(at)).unwrap_or(usize::MAX);
            Ok(is_zero(bytes.get(before..).unwrap_or_default()))
        });
    };
    // Allocated but unwritten blocks count as data while a page of them is cached (mm/filemap.c,
    // mapping_seek_hole_data). Each read would turn the following blocks into data by readahead, and a preallocated
    // image would be read completely. Dirty pages survive this, and count.
    advise(image, Advice::DontNeed)?;
    advise(image, Advice::Random)?;
    // Includes what lies behind the device's end: it would appear when the device grows.
    let length = image_length(image)?;
    let mut position = start;
    while let Some(data) = next(image, SeekFrom::Data(position))? {
        let end = next(image, SeekFrom::Hole(data))?.unwrap_or(length);
        let zero = all_zero(data, end, |at, length| {
            let part = &mut buffer.bytes()[..length];
            image
                .read_exact_at(part, at)
                .map_err(|error| Error::system("read the image", error))?;
            Ok(is_zero(part))
        })?;
        if !zero {
            return Ok(false);
        }
        position = end;
    }
    advise(image, Advice::Normal)?;
    if image_length(image)? != length {
        return Err(changed("the image's length changed".to_owned()));
    }
    Ok(true)
}

/// Whether `is_zero` holds for every part of a range, split into parts of at most [`BUFFER`] bytes.
pub(super) fn all_zero(
    from: u64,
    to: u64,
    mut is_zero: impl FnMut(u64, usize) -> Result<bool>,
) -> Result<bool> {
    let mut at = from;
    while at < to {
        let length = usize::try_from(to - at).map_or(BUFFER, |left| left.min(BUFFER));
        if !is_zero(at, length)? {
            return Ok(false);
        }
        at += length as u64;
    }
    Ok(true)
}

fn advise(image: &File, advice: Advice) -> Result<()> {
    fadvise(image, 0, None, advice).map_err(|error| Error::system("read the image uncached", error))
}

/// Returns where the next data or hole begins; `None` behind the last.
fn next(image: &File, what: SeekFrom) -> Result<Option<u64>> {
    match seek(image, what) {
        Ok(position) => Ok(Some(position)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(error) => Err(Error::system(
            "ask which parts of the image hold data",
            error,
        )),
    }
}

pub(super) fn is_zero(bytes: &[u8]) -> bool {
    /// Comparing slices is one `memcmp`, even in debug builds.
    static ZEROS: [u8; 4096] = [0; 4096];
    let mut parts = bytes.chunks(ZEROS.len());
    parts.all(|part| *part == ZEROS[..part.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_anywhere_is_not_zero() {
        for length in [0, 1, 511, 4095, 4096, 4097, 10_000] {
            let mut bytes = vec![0; length];
            assert!(is_zero(&bytes));
            for at in [0, length / 2, length.saturating_sub(1)] {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = 1;
                    assert!(!is_zero(&bytes), "{at} of {length}");
                    bytes[at] = 0;
                }
            }
        }
    }
}
