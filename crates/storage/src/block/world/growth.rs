//! Growth of a block volume, and repair after an interrupted growth.

use super::{BlockWorld, HiddenMount};
use crate::{
    backend::BlockBackend,
    decide,
    mark::{Mark, State},
    observed::Content,
    stored::Stored,
};
use flexvol_host::{
    Device,
    fs::grow::{self, Resizing},
    lock,
    mount::Detached,
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Filesystem, Result};

/// Largest volume whose file system the tools check and grow while a pod waits: `e2fsck` reads at most a
/// gibibyte of inode tables for it. With 20 TiB `resize2fs` took more than twenty minutes.
const LARGEST_WHILE_MOUNTING: Bytes = Bytes(64 << 30);

impl<B: BlockBackend> BlockWorld<'_, B> {
    pub(super) fn grow_storage(&mut self, to: Bytes) -> Result<()> {
        self.content = None;
        self.has_grown = false;
        self.end_hidden_mount();
        let had_device = self.device.is_some();
        let grown = self.grow_whole_storage(to);
        let is_slow = |error: &Error| error.kind() == ErrorKind::TimedOut;
        // A device that was made only to look is released again. If a program is still running, leave that to
        // the next call, so as to wait only once.
        if !had_device
            && !grown.as_ref().is_err_and(is_slow)
            && let Some(device) = self.device.take()
            && let Err(error) = self.stored.backend()?.unmap(device)
        {
            log::warn!("the volume keeps its device: {}", error.report());
        }
        grown
    }

    /// Drops the hidden mount. A killed program can leave the device suspended; dropping the mount later would
    /// hang while holding the volume's lock.
    pub(super) fn end_hidden_mount(&mut self) {
        if B::KEEPS_UNUSED {
            self.hidden = None;
        }
    }

    fn grow_whole_storage(&mut self, to: Bytes) -> Result<()> {
        self.expect_whole()?;
        self.stored.grow(to)?;
        match self.device {
            Some(_) => self.map(),
            None => Ok(()),
        }
    }

    /// Fails if the storage lost its end. Growing it would put zeros or foreign data there, and the loss could
    /// not be detected any more.
    fn expect_whole(&mut self) -> Result<()> {
        if self.stored.mark()?.state != State::Ready {
            return Ok(());
        }
        let size = self.stored.asset()?.map_or(Bytes(0), |asset| asset.size);
        let needed = match self.stored.backend()?.image(&self.stored.volume)? {
            Some(image) => grow::measure_unmounted(&image)?.map(|(found, _)| found.size),
            None => self.size_on_device(size)?,
        };
        match needed {
            Some(needed) if needed > size => Err(Error::new(
                ErrorKind::Storage,
                decide::truncated(needed, size),
            )),
            _ => Ok(()),
        }
    }

    /// Returns the size that the device still has, if larger than `size`, or else the size of its file system.
    /// Does not make a device that would not stay, since the volume may be attached to another node. If the
    /// device is larger, the backend is asked to map it again, because an interrupted growth may be the reason.
    fn size_on_device(&mut self, size: Bytes) -> Result<Option<Bytes>> {
        let is_to_be_mapped = match &self.device {
            Some(device) => device.size()? > size,
            None => B::KEEPS_UNUSED,
        };
        if is_to_be_mapped {
            self.map()?;
        }
        let Some(device) = &self.device else {
            return Ok(None);
        };
        let has = device.size()?;
        if has > size {
            return Ok(Some(has));
        }
        Ok(grow::measure_unmounted(device.file())?.map(|(found, _)| found.size))
    }

    pub(super) fn grow_filesystem(&mut self) -> Result<()> {
        let mark = self.stored.mark()?;
        let filesystem = mark
            .format
            .ok_or_else(|| Error::new(ErrorKind::Bug, "grow a file system that was never made"))?
            .filesystem;
        let hidden = self.hidden.take().ok_or_else(|| {
            Error::new(ErrorKind::Bug, "grow a file system that was not measured")
        })?;
        let before = self.content.take();
        let device = self.device()?;
        let hidden = match grow::online(hidden.mount.file(), device, filesystem) {
            Ok(_) => hidden,
            Err(refused) => {
                drop(hidden);
                self.grow_offline(filesystem, refused).map_err(|error| {
                    match (before, device.size()) {
                        (Some(Content::Ours { size: had, .. }), Ok(size)) => {
                            error.context(format_args!(
                                "the volume has {size:#} and its file system only {had:#}"
                            ))
                        }
                        _ => error,
                    }
                })?;
                // A tool may succeed and still leave what the kernel refuses to mount.
                HiddenMount::unidentified(Detached::new(device, filesystem)?)
            }
        };
        self.hidden = Some(hidden);
        if self.stored.mark()?.growing.is_some() {
            match self.stored.set_mark(&mark.with_growing(None)) {
                // The growth was measured, and the next callout measures it again.
                Err(error) if matches!(error.kind(), ErrorKind::Exhausted | ErrorKind::Busy) => {
                    log::warn!(
                        "the file system has grown, and its mark does not say so: {}",
                        error.report()
                    );
                    self.has_grown = true;
                }
                marked => marked?,
            }
        }
        Ok(())
    }

    /// Grows the file system with its tools after the kernel `refused`: it grows a mounted ext4 only with
    /// CAP_SYS_RESOURCE, and not with every set of features. The tools need the file system unmounted, which
    /// their exclusive claim ensures.
    fn grow_offline(&self, filesystem: Filesystem, refused: Error) -> Result<()> {
        let tools_can = has_tools(filesystem)
            && matches!(
                refused.kind(),
                ErrorKind::CapabilityMissing | ErrorKind::Conflict
            );
        if !tools_can {
            return Err(refused);
        }
        let device = self.device()?;
        let mark = self.stored.mark()?;
        // An interrupted `resize2fs` must be completed before a pod gets the volume, whatever its size.
        if self.mounting && !mark.resizing && device.size()? > LARGEST_WHILE_MOUNTING {
            return Err(refused.advise("it grows when expandfs is called and no pod uses it"));
        }
        let resizing = Marked {
            stored: &self.stored,
            mark: &mark,
            to: device.size()?,
        };
        match grow::offline(device, filesystem, &resizing, self.lock) {
            Err(busy) if busy.kind() == ErrorKind::Busy => Err(refused.advise(
                "delete the pods that use the volume; it grows when it is mounted next, if it has no damage",
            )),
            outcome => outcome,
        }
    }
}

/// Records in the volume's mark that tools were started. After a crash only the mark tells that they caused the
/// damage.
struct Marked<'a, B> {
    stored: &'a Stored<'a, B>,
    mark: &'a Mark,
    to: Bytes,
}

impl<B: BlockBackend> Resizing for Marked<'_, B> {
    fn was_begun(&self) -> bool {
        self.mark.resizing
    }

    fn begin(&self) -> Result<()> {
        match self.mark.resizing {
            true => Ok(()),
            false => self.stored.set_mark(&self.mark.with_resizing(self.to)),
        }
    }
}

/// Whether there are tools that grow such a file system and repair an interrupted growth.
fn has_tools(filesystem: Filesystem) -> bool {
    matches!(filesystem, Filesystem::Ext3 | Filesystem::Ext4)
}

/// Mounts the file system where nobody sees it, mending it if the kernel refuses it. The superblock of ext4
/// fills two sectors and is read before the journal is: a power failure between two writes leaves a checksum
/// that the kernel refuses, and so do interrupted tools. Both may have happened, hence two attempts.
pub(super) fn mount_or_mend(
    device: &Device,
    filesystem: Filesystem,
    mark: &Mark,
    lock: &lock::Guard,
) -> Result<Detached> {
    let mut mounted = Detached::new(device, filesystem);
    for _ in 0..2 {
        match &mounted {
            Err(refused) if refused.kind() == ErrorKind::Storage && has_tools(filesystem) => {}
            _ => break,
        }
        if let Err(error) = grow::mend(device, filesystem, mark.resizing, lock) {
            log::warn!("the file system is not mended: {}", error.report());
            break;
        }
        mounted = Detached::new(device, filesystem);
    }
    mounted
}
