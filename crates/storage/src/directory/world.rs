//! A directory volume under its lock: executes the steps of `decide`.
//!
//! The volume is ready from its creation. Its "device" is the directory: it exists as long as the volume, and
//! the file system always spans all of it.

use crate::{
    backend::DirectoryBackend,
    decide::Step,
    kind::{CallContext, is_of_the_node},
    mark::State,
    observed::{Asset, Content, DeviceState, Goal, Observed, TargetState},
    reconcile::World,
    stored::Stored,
};
use flexvol_host::{
    VolumeId,
    fs::{self, ownership},
    mount::{self, Target},
    mountinfo::{self, Mount},
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};
use std::{os::fd::AsFd, path::Path};

/// One volume under its lock. While its pool is missing, there is no backend and the volume can only be
/// unmounted.
pub(crate) struct DirectoryWorld<'a, B> {
    stored: Stored<'a, B>,
    context: CallContext,
}

impl<'a, B: DirectoryBackend> DirectoryWorld<'a, B> {
    pub(crate) fn new(backend: Option<&'a B>, volume: VolumeId, context: CallContext) -> Self {
        DirectoryWorld {
            stored: Stored { backend, volume },
            context,
        }
    }

    /// Looks at the callout's directory. For unmounting the mount table is enough; for anything else the mount
    /// must be of the directory that the pool has now.
    fn target(&self, asset: Option<&Asset>) -> Result<TargetState> {
        let Some(dir) = &self.context.dir else {
            return Ok(TargetState::Absent);
        };
        let Some(target) = Target::open(dir)? else {
            return Ok(TargetState::Absent);
        };
        let Some(mount) = target.mount()? else {
            return Ok(match target.is_empty()? {
                true if self.is_duplicate(dir)? => TargetState::Duplicate,
                true => TargetState::Free,
                false => TargetState::NotEmpty,
            });
        };
        if mount.volume() != Some(self.stored.volume) {
            return Ok(TargetState::Other);
        }
        if asset.is_some() {
            let directory = self.stored.backend()?.open(&self.stored.volume)?;
            if !target.shows(directory.as_fd())? {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    "what is mounted on the directory is not this volume any more; unmount it first",
                ));
            }
        }
        Ok(match mount.is_confined {
            true => TargetState::Ours {
                read_only: mount.read_only,
            },
            false => TargetState::HalfMade,
        })
    }

    /// Whether a mount on this directory of kubelet's own would be a second one of the volume.
    fn is_duplicate(&self, dir: &Path) -> Result<bool> {
        let of_volume = |mount: &Mount| mount.volume() == Some(self.stored.volume);
        Ok(is_of_the_node(dir)
            && mountinfo::read()?
                .iter()
                .any(|mount| of_volume(mount) && is_of_the_node(&mount.mount_point)))
    }

    /// Whether the directory or a part of it is mounted on a path for which `counts` is true, in any mount
    /// namespace.
    fn is_mounted(&self, counts: impl Fn(&Path) -> bool) -> Result<bool> {
        let directory = self.stored.backend()?.outermost(&self.stored.volume)?;
        mountinfo::is_directory_anywhere(directory.as_fd(), counts)
    }

    fn mount(&self, read_only: bool) -> Result<()> {
        let backend = self.stored.backend()?;
        let directory = backend.open(&self.stored.volume)?;
        // Restore first, because a pod may have made its volume read-only.
        let restored = backend.restore(&self.stored.volume);
        // A read-only file system needs no limit, and none can be set on it.
        match fs::expect_writable(directory.as_fd()) {
            Ok(()) => restored?,
            Err(error) if !read_only => return Err(error),
            Err(_) => {}
        }
        if let (Some(group), false) = (self.context.fs_group, read_only) {
            ownership::share_with(directory.as_fd(), group)?;
        }
        let target = Target::create(self.dir()?)?;
        mount::bind(directory.as_fd(), &target, read_only)
    }

    fn dir(&self) -> Result<&Path> {
        self.context
            .dir
            .as_deref()
            .ok_or_else(|| Error::new(ErrorKind::Bug, "mount without a directory"))
    }
}

impl<B: DirectoryBackend> World for DirectoryWorld<'_, B> {
    fn observe(&mut self, goal: &Goal) -> Result<Observed> {
        // Unmounting must succeed even if the pool is missing or the mark is unreadable.
        let asset = match goal {
            Goal::Unmounted => None,
            _ => self.stored.asset()?,
        };
        let target = self.target(asset.as_ref())?;
        if let Goal::Mounted {
            read_only: false, ..
        } = goal
            && let (Some(_), TargetState::Ours { .. }) = (&asset, &target)
        {
            fs::expect_writable(self.stored.backend()?.open(&self.stored.volume)?.as_fd())?;
        }
        let in_use = asset.is_some() && goal.ends_use() && self.is_mounted(|_| true)?;
        let device = asset
            .as_ref()
            .filter(|_| in_use || !goal.ends_use())
            .map(|asset| DeviceState {
                size: asset.size,
                in_use,
                content: Content::Ours {
                    size: asset.size,
                    slack: Bytes(0),
                },
            });
        // If the size is reached, all that remains of a growth is a field of the mark.
        let is_smaller = |asset: &Asset| matches!(goal, Goal::Grown { to, .. } if asset.size < *to);
        let offline = goal.grows_offline() && asset.as_ref().is_some_and(is_smaller);
        let by_pods = |place: &Path| self.context.is_of_another_pod(place);
        Ok(Observed {
            used_by_pods: offline && self.is_mounted(by_pods)?,
            asset,
            device,
            target,
            // The file system of the pool was checked above.
            takes_no_writes: false,
            growth_refused: false,
        })
    }

    fn act(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Create { size } => self.stored.create(*size, State::Ready, &self.context),
            Step::Mark(mark) => self.stored.set_mark(mark),
            Step::GrowStorage { to } => self.stored.grow(*to),
            Step::GrowFilesystem => {
                let mark = self.stored.mark()?;
                self.stored.set_mark(&mark.with_growing(None))
            }
            Step::Mount { read_only } => self.mount(*read_only),
            Step::SetReadOnly(read_only) => match Target::open(self.dir()?)? {
                Some(target) => target.set_read_only(*read_only),
                None => Ok(()),
            },
            Step::Unmount => mount::unbind(self.dir()?).map(drop),
            Step::Destroy => self.stored.destroy(),
            Step::Map | Step::Unmap | Step::Format(_) => Err(Error::new(
                ErrorKind::Bug,
                "a directory was treated as a block device",
            )),
        }
    }
}
