//! Reads a device past its page cache, and only while it stays the same device.

use crate::block::{device::Device, number::DeviceNumber};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::{
    fs::File,
    io,
    os::unix::fs::{FileExt, MetadataExt},
};

/// Alignment of reads and buffers: no disk has larger logical blocks on Linux.
pub(super) const ALIGNMENT: usize = 4096;

pub(super) fn changed(detail: String) -> Error {
    Error::new(
        ErrorKind::Storage,
        "cannot probe the device: it is not what it was",
    )
    .because(detail)
}

/// Reads of the device bypass its page cache while this value lives.
pub(super) struct Direct<'a> {
    device: &'a Device,
    pub(super) size: Bytes,
    flags: OFlags,
}

impl<'a> Direct<'a> {
    pub(super) fn new(device: &'a Device) -> Result<Self> {
        let size = device.size()?;
        if size.0 == 0 {
            return Err(changed("it has no size".to_owned()));
        }
        let no_direct = |error| Error::system("read the device past its cache", error);
        let flags = fcntl_getfl(device.file()).map_err(no_direct)?;
        fcntl_setfl(device.file(), flags | OFlags::DIRECT).map_err(no_direct)?;
        let direct = Direct {
            device,
            size,
            flags,
        };
        direct.unchanged()?;
        Ok(direct)
    }

    /// Reads up to `length` bytes from `start`, limited by the device's end. Fewer is an error.
    pub(super) fn read<'b>(
        &self,
        buffer: &'b mut Buffer,
        start: u64,
        length: usize,
    ) -> Result<&'b [u8]> {
        let left = self.size.0.saturating_sub(start);
        let length = usize::try_from(left).map_or(length, |left| left.min(length));
        let bytes = &mut buffer.bytes()[..length];
        let mut done = 0;
        while done < length {
            match self
                .device
                .file()
                .read_at(&mut bytes[done..], start + done as u64)
            {
                Ok(0) => return Err(changed("it ended early".to_owned())),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::system("read the device", error)),
            }
        }
        Ok(bytes)
    }

    /// Fails when the descriptor refers to another device by now, when the device's size has changed, or when its image
    /// is shorter.
    pub(super) fn unchanged(&self) -> Result<()> {
        let metadata = self
            .device
            .file()
            .metadata()
            .map_err(|error| Error::system("look at the device", error))?;
        let number = DeviceNumber::from_raw(metadata.rdev());
        let size = self.device.size()?;
        if number != self.device.number() || size != self.size {
            return Err(changed(format!(
                "{} of {} bytes is {number} of {} bytes",
                self.device.number(),
                self.size.0,
                size.0
            )));
        }
        // Kernels differ in how a loop device reads behind the end of its image: as zeros (6.1, drivers/block/loop.c,
        // `lo_read_simple`) or with an I/O error.
        if let Some(image) = self.device.backing() {
            let length = image_length(image)?;
            if length < size.0 {
                return Err(changed(format!(
                    "the image has {length} bytes, its device {}",
                    size.0
                )));
            }
        }
        Ok(())
    }
}

impl Drop for Direct<'_> {
    fn drop(&mut self) {
        if let Err(error) = fcntl_setfl(self.device.file(), self.flags) {
            log::warn!("cannot restore the flags of a device's descriptor: {error}");
        }
    }
}

/// Memory whose address `O_DIRECT` accepts.
pub(super) struct Buffer {
    memory: Vec<u8>,
    from: usize,
    length: usize,
}

impl Buffer {
    pub(super) fn new(length: usize) -> Self {
        let memory = vec![0; length + ALIGNMENT];
        let from = memory.as_ptr().align_offset(ALIGNMENT);
        Buffer {
            memory,
            from,
            length,
        }
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.from..][..self.length]
    }
}

pub(super) fn image_length(image: &File) -> Result<u64> {
    match image.metadata() {
        Ok(metadata) => Ok(metadata.len()),
        Err(error) => Err(Error::system("ask for the image's length", error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned() {
        let mut buffer = Buffer::new(8192);
        assert_eq!(buffer.bytes().as_ptr().align_offset(ALIGNMENT), 0);
        assert_eq!(buffer.bytes().len(), 8192);
    }
}
