//! A block volume of this node under its lock: executes the steps of `decide`.

mod content;
mod growth;

use crate::{
    backend::BlockBackend,
    decide::Step,
    kind::{CallContext, is_of_the_node},
    mark::{Mark, State},
    observed::{Asset, Content, DeviceState, Goal, Observed, TargetState},
    reconcile::World,
    stored::Stored,
};
use flexvol_host::{
    Device, DeviceNumber, VolumeId,
    fs::{
        self,
        grow::{self, Geometry},
    },
    lock,
    mount::{self, Detached, Target},
    mountinfo,
    superblock::Superblock,
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Filesystem, Result};
use std::path::{Path, PathBuf};

/// One volume under its lock. While its pool is missing, `backend` is `None` and the volume can only be
/// unmounted.
pub(crate) struct BlockWorld<'a, B> {
    stored: Stored<'a, B>,
    lock: &'a lock::Guard,
    context: CallContext,
    /// Held between steps, because a loop device with autoclear would disappear.
    device: Option<Device>,
    /// Whether the backend made or adjusted the device in this callout. A device that was only found may be
    /// another's, read-only, or without autoclear.
    fits: bool,
    hidden: Option<HiddenMount>,
    /// The device of this volume that is mounted on the directory.
    mounted: Option<DeviceNumber>,
    /// Whether a pod waits, so that tools may grow only file systems of up to `LARGEST_WHILE_MOUNTING`.
    mounting: bool,
    /// Whether the file system was grown completely in this callout, but the pool had no space for the mark
    /// that says so.
    has_grown: bool,
    /// The cached content of the device, cleared by every step that may change it.
    content: Option<Content>,
}

/// A mount that is attached nowhere. The file system is measured and grown through it, and finally it becomes the
/// pod's mount.
struct HiddenMount {
    mount: Detached,
    /// Whether the device was seen to hold the file system that the mark names. Its superblock need not be read again:
    /// while it is mounted, the kernel's own copy counts.
    is_identified: bool,
}

impl HiddenMount {
    fn unidentified(mount: Detached) -> Self {
        HiddenMount {
            mount,
            is_identified: false,
        }
    }
}

#[cold]
fn went_away() -> Error {
    Error::new(ErrorKind::Bug, "the device went away between two steps")
}

impl<'a, B: BlockBackend> BlockWorld<'a, B> {
    pub(crate) fn new(
        backend: Option<&'a B>,
        volume: VolumeId,
        lock: &'a lock::Guard,
        context: CallContext,
    ) -> Self {
        BlockWorld {
            stored: Stored { backend, volume },
            lock,
            context,
            device: None,
            fits: false,
            hidden: None,
            mounted: None,
            mounting: false,
            has_grown: false,
            content: None,
        }
    }

    fn asset(&self) -> Result<Option<Asset>> {
        let mut asset = self.stored.asset()?;
        if let Some(mark) = asset.as_mut().and_then(|asset| asset.mark.as_mut())
            && self.has_grown
        {
            *mark = mark.with_growing(None);
        }
        Ok(asset)
    }

    /// Finds the device, unless one is held already, and holds it.
    fn find_device(&mut self) -> Result<()> {
        if self.device.is_none()
            && let Some(backend) = self.stored.backend
        {
            self.device = backend.mapped(&self.stored.volume, self.lock.hint())?;
            if let Some(device) = &self.device {
                B::resume(device.number())?;
            }
        }
        Ok(())
    }

    fn device(&self) -> Result<&Device> {
        self.device.as_ref().ok_or_else(went_away)
    }

    fn forget(&mut self) {
        self.hidden = None;
        self.content = None;
    }

    fn target(&mut self) -> Result<TargetState> {
        self.mounted = None;
        let Some(dir) = &self.context.dir else {
            return Ok(TargetState::Absent);
        };
        let Some(target) = Target::open(dir)? else {
            return Ok(TargetState::Absent);
        };
        let mut ours = None;
        let devices = target.devices()?;
        for device in &devices {
            if self.is_ours(*device)? {
                ours = Some(*device);
                break;
            }
        }
        // The file system may not answer before its device does.
        if let Some(device) = ours {
            B::resume(device)?;
        }
        Ok(match target.mounted_from(devices)? {
            None => match target.is_empty()? {
                true if self.is_duplicate(dir)? => TargetState::Duplicate,
                true => TargetState::Free,
                false => TargetState::NotEmpty,
            },
            Some(mounted) if ours.is_some_and(|ours| mounted.devices.contains(&ours)) => {
                self.mounted = ours;
                TargetState::Ours {
                    read_only: mounted.read_only,
                }
            }
            Some(mounted)
                if self.context.moved.is_some() && target.btrfs()? == self.context.moved =>
            {
                TargetState::Ours {
                    read_only: mounted.read_only,
                }
            }
            Some(_) => TargetState::Other,
        })
    }

    /// Whether the volume's btrfs is mounted without the volume's device, which then says nothing about it. If
    /// the superblock is still on the device, the mount is one of a copy: removing or replacing a device of a
    /// btrfs wipes its superblock (`btrfs_scratch_superblocks`).
    fn is_moved(&self, mark: &Mark) -> Result<bool> {
        let Some(format) = mark.format else {
            return Ok(false);
        };
        if format.filesystem != Filesystem::Btrfs || !grow::is_btrfs_mounted(format.uuid)? {
            return Ok(false);
        }
        let found = match &self.device {
            Some(device) => grow::measure_unmounted(device.file())?,
            None => self.measure_without_device()?,
        };
        let is_there = |(found, _): &(Superblock, _)| {
            found.filesystem == format.filesystem && found.uuid == format.uuid
        };
        Ok(!found.as_ref().is_some_and(is_there))
    }

    /// Returns `None` also if the volume cannot be read without making a device that would not stay.
    fn measure_without_device(&self) -> Result<Option<(Superblock, Geometry)>> {
        let (backend, volume) = (self.stored.backend()?, &self.stored.volume);
        if let Some(image) = backend.image(volume)? {
            return grow::measure_unmounted(&image);
        }
        if !B::KEEPS_UNUSED {
            return Ok(None);
        }
        let device = backend.map(volume, self.lock.hint())?;
        let found = grow::measure_unmounted(device.file());
        backend.unmap(device)?;
        found
    }

    /// Whether a mount on this directory of kubelet's own would be a second one of the volume.
    fn is_duplicate(&self, dir: &Path) -> Result<bool> {
        let Some(device) = self.device.as_ref().filter(|_| is_of_the_node(dir)) else {
            return Ok(false);
        };
        let mounts = mountinfo::mounts_of(device.number())?;
        Ok(mounts.iter().any(|it| is_of_the_node(&it.mount_point)))
    }

    /// Whether the file system of the hidden mount takes no writes after an error. Other mounts of it keep it
    /// in that state.
    fn has_failed(&self) -> Result<bool> {
        match (&self.hidden, &self.device) {
            (Some(HiddenMount { mount, .. }), Some(device)) => {
                fs::has_failed(mount.file(), device, mount.filesystem())
            }
            _ => Ok(false),
        }
    }

    fn is_ours(&self, number: DeviceNumber) -> Result<bool> {
        match &self.device {
            Some(device) => Ok(device.number() == number),
            None => {
                let volume = self.stored.volume;
                Ok(B::owner(number, Some(&volume))? == Some(volume))
            }
        }
    }

    fn map(&mut self) -> Result<()> {
        let before = self.device.as_ref().map(Device::number);
        self.content = None;
        self.end_hidden_mount();
        let (backend, hint) = (self.stored.backend()?, self.lock.hint());
        let device = match self.device.take() {
            Some(held) => backend.map_again(&self.stored.volume, held, hint)?,
            None => backend.map(&self.stored.volume, hint)?,
        };
        // A hidden mount of the same device follows its changes.
        if before != Some(device.number()) {
            self.hidden = None;
        }
        self.lock.set_hint(device.number().minor);
        self.device = Some(device);
        self.fits = true;
        Ok(())
    }

    fn mount(&mut self, read_only: bool) -> Result<()> {
        let dir = self.dir()?;
        let target = Target::create(&dir)?;
        let mount = match self.hidden.take() {
            Some(hidden) => hidden.mount,
            None => {
                let format = self.stored.mark()?.format;
                let format = format.ok_or_else(|| {
                    Error::new(ErrorKind::Bug, "mount a volume without a file system")
                })?;
                Detached::new(self.device()?, format.filesystem)?
            }
        };
        mount.attach(&target, read_only)
    }

    fn dir(&self) -> Result<PathBuf> {
        self.context
            .dir
            .clone()
            .ok_or_else(|| Error::new(ErrorKind::Bug, "mount without a directory"))
    }
}

impl<B: BlockBackend> World for BlockWorld<'_, B> {
    fn observe(&mut self, goal: &Goal) -> Result<Observed> {
        // Unmounting must succeed even if the pool is missing or the mark is unreadable.
        let unmounting = *goal == Goal::Unmounted;
        self.mounting = matches!(goal, Goal::Mounted { .. });
        let asset = if unmounting { None } else { self.asset()? };
        if asset.is_some() {
            self.find_device()?;
        }
        let target = self.target()?;
        let mark = asset.as_ref().and_then(|asset| asset.mark.clone());
        let deep = matches!(goal, Goal::Mounted { .. } | Goal::Grown { .. });
        let device = match (&self.device, mark) {
            (Some(device), Some(mark)) => {
                let (number, size) = (device.number(), device.size()?);
                let in_use = goal.ends_use() && (is_claimed(device)? || self.is_moved(&mark)?);
                let content = match &asset {
                    Some(asset) if deep && self.fits && size >= asset.size => {
                        self.read_content(&mark, asset.size)?
                    }
                    _ => Content::NotRead,
                };
                let whole = matches!(content, Content::Ours { size: spans, .. } if spans >= size);
                let grows = matches!(goal, Goal::Grown { .. }) || !whole || mark.growing.is_some();
                let used_by_pods = grows && goal.grows_offline() && self.is_used_by_pods(number)?;
                Some((
                    DeviceState {
                        size,
                        in_use,
                        content,
                    },
                    used_by_pods,
                ))
            }
            (None, Some(mark)) if goal.ends_use() && self.is_moved(&mark)? => {
                let size = asset.as_ref().map_or(Bytes(0), |asset| asset.size);
                let state = DeviceState {
                    size,
                    in_use: true,
                    content: Content::NotRead,
                };
                Some((state, false))
            }
            _ => None,
        };
        let used_by_pods = device.as_ref().is_some_and(|(_, used)| *used);
        let writes = matches!(
            goal,
            Goal::Mounted {
                read_only: false,
                ..
            }
        );
        Ok(Observed {
            asset,
            device: device.map(|(state, _)| state),
            target,
            used_by_pods,
            takes_no_writes: writes && self.has_failed()?,
            growth_refused: false,
        })
    }

    fn act(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Create { size } => self.stored.create(*size, State::Blank, &self.context),
            Step::Mark(mark) => self.stored.set_mark(mark),
            Step::Map => self.map(),
            Step::Unmap => {
                self.forget();
                match self.device.take() {
                    Some(device) => self.stored.backend()?.unmap(device),
                    None => Ok(()),
                }
            }
            Step::Format(filesystem) => self.format(*filesystem),
            Step::GrowStorage { to } => self.grow_storage(*to),
            Step::GrowFilesystem => self.grow_filesystem(),
            Step::Mount { read_only } => self.mount(*read_only),
            Step::SetReadOnly(read_only) => match Target::open(&self.dir()?)? {
                Some(target) => target.set_read_only(*read_only),
                None => Ok(()),
            },
            Step::Unmount => {
                self.forget();
                self.device = None;
                // Unmounting writes dirty pages, which would hang on a suspended device.
                if let Some(device) = self.mounted {
                    B::resume(device)?;
                }
                mount::unmount(&self.dir()?).map(drop)
            }
            Step::Destroy => self.stored.destroy(),
        }
    }
}

impl<B: BlockBackend> BlockWorld<'_, B> {
    /// Whether the device is mounted by a pod: in any mount namespace, anywhere but on this callout's directory
    /// and on kubelet's own directory for an attached volume.
    fn is_used_by_pods(&self, number: DeviceNumber) -> Result<bool> {
        mountinfo::is_anywhere(number, |place| self.context.is_of_another_pod(place))
    }
}

fn is_claimed(device: &Device) -> Result<bool> {
    match device.claim() {
        Ok(_) => Ok(false),
        Err(busy) if busy.kind() == ErrorKind::Busy => {
            device.expect_not_stacked()?;
            Ok(true)
        }
        Err(error) => Err(error),
    }
}
