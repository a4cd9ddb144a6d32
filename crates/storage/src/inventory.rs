//! Read access to a driver's pools and volumes, for commands; no callout needs it.
//!
//! Nothing here takes a volume's lock, attaches, mounts or writes. If a callout is working on a volume, its
//! present state is shown. Reading a pool's free space may take the pool's own lock.

pub(crate) mod block;
pub(crate) mod directory;

use crate::{
    any_pool::{AnyPool, KindVtable, Opened},
    forecast::{Forecast, Prospect, forecast},
    mounts::Mounts,
    observed::{Content, DeviceState, Goal, Observed, Requester, TargetState},
    settings::Growth,
    stored::expect_own,
    volume_driver::VolumeDriver,
    volume_report::VolumeReport,
};
use flexvol_host::{
    VolumeId, lock,
    mount::{Mounted, Target},
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Handle, Result, VolumeName};
use std::path::{Path, PathBuf};

/// The present state of one pool.
#[derive(Debug)]
#[non_exhaustive]
pub struct PoolReport {
    /// The pool's name in the configuration.
    pub name: String,
    /// The free space for new volumes, or why the pool cannot be used.
    pub available: Result<Bytes>,
}

/// The ways in which users name a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// By its handle.
    Handle(Handle),
    /// By the name of its persistent volume.
    Name(VolumeName),
    /// By a directory on which it is, or was to be, mounted.
    Directory(PathBuf),
}

impl Subject {
    /// Parses a handle, a path (any text with a slash) or a name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for text that is none of them.
    pub fn parse(text: &str) -> Result<Self> {
        if let Ok(handle) = Handle::parse(text) {
            return Ok(Subject::Handle(handle));
        }
        if text.contains('/') {
            return Ok(Subject::Directory(PathBuf::from(text)));
        }
        VolumeName::parse(text).map(Subject::Name)
    }
}

/// One volume, what blocks it, and what would happen to it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// The volume.
    pub volume: VolumeReport,
    /// The state of the directory, if one was named.
    pub target: Option<TargetState>,
    /// The holder of the volume's lock.
    pub locked_by: Option<lock::Holder>,
    /// The free space of its pool.
    pub available: Result<Bytes>,
    /// What a mount would do.
    pub mount: Forecast,
    /// The requested size; by default the largest that the volume's mark or storage remembers.
    pub grow_to: Bytes,
    /// What a growth to that size would do.
    pub grow: Forecast,
}

/// Read access to the pools and volumes of a driver, whatever its backend.
pub trait Inventory {
    /// Lists all configured pools, including those that cannot be used now.
    fn pools(&self) -> Vec<PoolReport>;

    /// Lists the volumes of one pool, those with a name first and sorted. A volume that cannot be read is an
    /// error among the others.
    ///
    /// # Errors
    /// When the pool cannot be used.
    fn volumes(&self, pool: &str) -> Result<Vec<Result<VolumeReport, (VolumeId, Error)>>>;

    /// Finds one volume.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is none; if a pool could not be searched, the reason.
    fn find(&self, subject: &Subject) -> Result<VolumeReport>;

    /// Explains one volume, with what a mount and a growth to `size` would do now.
    ///
    /// # Errors
    /// As for [`Inventory::find`].
    fn explain(&self, subject: &Subject, size: Option<Bytes>) -> Result<Explanation>;
}

impl Inventory for VolumeDriver {
    fn pools(&self) -> Vec<PoolReport> {
        let report = |pool: &AnyPool| PoolReport {
            name: pool.name().to_owned(),
            available: pool
                .open()
                .and_then(|opened| opened.backend().capacity(&Default::default())),
        };
        self.pools.iter().map(report).collect()
    }

    fn volumes(&self, pool: &str) -> Result<Vec<Result<VolumeReport, (VolumeId, Error)>>> {
        let pool = self.pool(Some(pool))?;
        let opened = pool.open()?;
        let mounts = Mounts::read()?;
        let mut volumes: Vec<_> = opened
            .backend()
            .catalog()
            .volume_ids()?
            .into_iter()
            .filter_map(|id| {
                report(&*opened, pool.name(), id, &mounts)
                    .map_err(|error| (id, error))
                    .transpose()
            })
            .collect();
        mounts.look_elsewhere(volumes.iter_mut().filter_map(|it| it.as_mut().ok()))?;
        volumes.sort_by_key(|volume| match volume {
            Ok(volume) => (volume.name().is_none(), volume.name().cloned(), volume.id),
            Err((id, _)) => (true, None, *id),
        });
        Ok(volumes)
    }

    fn find(&self, subject: &Subject) -> Result<VolumeReport> {
        let (mut name, mut id) = (None, None);
        match subject {
            Subject::Handle(told) => id = Some(VolumeId::of(told)),
            Subject::Name(told) => name = Some(told.clone()),
            Subject::Directory(dir) => match self.owner(dir)? {
                Some(owner) => id = Some(owner),
                // Kubelet names a pod's directory for a volume after the volume.
                None => {
                    let last = dir.file_name().unwrap_or_default().to_string_lossy();
                    name = VolumeName::parse(&last).ok();
                }
            },
        }
        let mounts = Mounts::read()?;
        let mut unavailable = None;
        for pool in &self.pools {
            let found = pool.open().and_then(|opened| {
                let bound = match &name {
                    Some(name) => {
                        let handle = opened.backend().catalog().lookup(name)?;
                        handle.as_ref().map(VolumeId::of)
                    }
                    None => id,
                };
                match bound {
                    Some(bound) => report(&*opened, pool.name(), bound, &mounts),
                    None => Ok(None),
                }
            });
            match found {
                Ok(Some(mut volume)) => {
                    mounts.look_elsewhere([&mut volume])?;
                    return Ok(volume);
                }
                Ok(None) => {}
                Err(error) => {
                    let what = format!("pool {}: {}", pool.name(), error.report());
                    unavailable = Some(Error::new(error.kind(), what));
                }
            }
        }
        Err(unavailable.unwrap_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                "there is no such volume in the pools of this driver",
            )
        }))
    }

    fn explain(&self, subject: &Subject, size: Option<Bytes>) -> Result<Explanation> {
        let volume = self.find(subject)?;
        let pool = self.pool(Some(&volume.pool))?;
        let available = pool
            .open()
            .and_then(|opened| opened.backend().capacity(&Default::default()));
        let target = match subject {
            Subject::Directory(dir) => Some(target(&self.kind, dir, &volume)?),
            _ => None,
        };
        let prospect = prospect(&volume, target, available.as_ref().ok().copied());
        let offline = self.settings().growth == Growth::Offline;
        let mount = Goal::Mounted {
            filesystem: None,
            default: pool.policy().filesystem,
            offline,
            read_only: false,
            requester: Requester::Anybody,
        };
        let growing = volume.mark().and_then(|mark| mark.growing);
        let remembered = volume.asset.size.max(growing.unwrap_or_default());
        let grow_to = size.unwrap_or(remembered);
        let grow = pool.policy().admit(grow_to).map(|to| Goal::Grown {
            to,
            offline,
            read_only: false,
        });
        Ok(Explanation {
            target,
            locked_by: lock::holder(&volume.id)?,
            available,
            mount: forecast(prospect.clone(), &mount),
            grow_to,
            grow: match grow {
                Ok(goal) => forecast(prospect, &goal),
                Err(refused) => Forecast::refused(refused.kind(), refused.to_string()),
            },
            volume,
        })
    }
}

fn report(
    opened: &dyn Opened,
    pool: &str,
    id: VolumeId,
    mounts: &Mounts,
) -> Result<Option<VolumeReport>> {
    let backend = opened.backend();
    let Some(asset) = backend.find(&id)? else {
        return Ok(None);
    };
    if let Some(mark) = &asset.mark {
        expect_own(mark, &id, backend)?;
    }
    let mut report = VolumeReport {
        id,
        pool: pool.to_owned(),
        asset,
        is_directory: false,
        device: None,
        content: Content::NotRead,
        mounts: Vec::new(),
        elsewhere: Vec::new(),
    };
    opened.complete_report(mounts, &mut report)?;
    Ok(Some(report))
}

fn target(kind: &KindVtable, dir: &Path, volume: &VolumeReport) -> Result<TargetState> {
    let Some(target) = Target::open(dir)? else {
        return Ok(TargetState::Absent);
    };
    let mounted = match (kind.is_responsive)(&target)? {
        true => target.mounted()?,
        false => target
            .mount()?
            .map(|mount| {
                Ok::<_, Error>(Mounted {
                    devices: target.devices()?,
                    read_only: mount.read_only || mount.superblock_read_only,
                })
            })
            .transpose()?,
    };
    Ok(match mounted {
        None if target.is_empty()? => TargetState::Free,
        None => TargetState::NotEmpty,
        Some(mounted) if (kind.shows)(&target, &mounted, volume)? => TargetState::Ours {
            read_only: mounted.read_only,
        },
        Some(_) => TargetState::Other,
    })
}

fn prospect(
    volume: &VolumeReport,
    target: Option<TargetState>,
    available: Option<Bytes>,
) -> Prospect {
    let in_use = !volume.mounts.is_empty() || !volume.elsewhere.is_empty();
    // A directory volume has no device; the directory itself stands for it.
    let device = match &volume.device {
        Some(device) => Some(device.size),
        None => volume.is_directory.then_some(volume.asset.size),
    };
    Prospect {
        seen: Observed {
            asset: Some(volume.asset.clone()),
            device: device.map(|size| DeviceState {
                size,
                in_use,
                content: volume.content.clone(),
            }),
            target: target.unwrap_or(TargetState::Free),
            used_by_pods: in_use,
            takes_no_writes: false,
            growth_refused: false,
        },
        content: volume.content.clone(),
        available,
    }
}
