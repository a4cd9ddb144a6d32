//! A model of a volume: every way to interrupt a step leads to one of its states.

use flexvol_host::{PoolId, Uuid};
use flexvol_sdk::{Bytes, Error, ErrorKind, Filesystem, Handle, Result, VolumeName};
use flexvol_storage::{
    Asset, Goal, Mark, Observed, World,
    decide::Step,
    mark::{Format, State},
    observed::{Content, DeviceState, TargetState},
    reconcile,
};

/// The actual content of the disk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Disk {
    Zero,
    /// mkfs was interrupted.
    HalfMade,
    Filesystem {
        kind: Filesystem,
        size: u64,
        /// Growth was interrupted: XFS has old secondary superblocks.
        torn: bool,
        /// A pod wrote into it.
        data: bool,
    },
    Alien,
    Dead,
}

/// The directories a volume can be mounted on: kubelet's own in attach mode, and two pods'.
pub const DIRECTORIES: usize = 3;
pub const GLOBAL: usize = 0;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Directory {
    pub read_only: bool,
    /// The pod's containers run.
    pub running: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Model {
    pub asset: Option<(u64, Mark)>,
    pub mapped: Option<u64>,
    pub disk: Disk,
    pub mounts: [Option<Directory>; DIRECTORIES],
    /// The mounted file system met an error and takes no writes.
    pub aborted: bool,
    /// The device disappears with its last user, as a loop device with autoclear does; a logical volume stays.
    pub autoclear: bool,
    /// Whether the kernel also grows a mounted file system.
    pub grows_mounted: bool,
    /// Whether the driver grows volumes only while no pod uses them.
    pub offline: bool,
}

pub fn uuid() -> Uuid {
    Uuid::from_bytes([7; 16])
}

pub fn blank_mark() -> Mark {
    let (handle, pool) = (Handle::from_bytes([1; 16]), PoolId::from_bytes([2; 16]));
    let name = VolumeName::parse("data").expect("a name");
    Mark::blank(handle, pool, Some(name), Some("default".to_owned()))
}

/// Whether the volume may be gone after the step: without space for the mark that it is being deleted, it is
/// removed at once.
pub fn may_remove(step: &Step) -> bool {
    match step {
        Step::Destroy => true,
        Step::Mark(mark) => mark.state == State::Deleting,
        _ => false,
    }
}

impl Model {
    pub fn nothing(autoclear: bool) -> Model {
        Model {
            asset: None,
            mapped: None,
            disk: Disk::Zero,
            mounts: [None; DIRECTORIES],
            aborted: false,
            autoclear,
            grows_mounted: true,
            offline: false,
        }
    }

    pub fn provisioned(disk: Disk, autoclear: bool) -> Model {
        Model {
            asset: Some((1, blank_mark())),
            disk,
            ..Model::nothing(autoclear)
        }
    }

    pub fn is_mounted(&self) -> bool {
        self.mounts.iter().any(Option::is_some)
    }

    fn mark(&mut self) -> &mut Mark {
        &mut self.asset.as_mut().expect("a step on no volume").1
    }

    pub fn refuses(&self, step: &Step) -> bool {
        let refused = self.aborted || (!self.grows_mounted && self.is_mounted());
        *step == Step::GrowFilesystem && refused
    }

    pub fn has_data(&self) -> bool {
        matches!(self.disk, Disk::Filesystem { data: true, .. })
    }

    /// Whether another pod than the one on `dir` has the volume.
    pub fn used_by_pods(&self, dir: usize) -> bool {
        let others = (1..DIRECTORIES).any(|other| other != dir && self.mounts[other].is_some());
        others || self.mounts.iter().flatten().any(|mount| mount.running)
    }

    pub fn seen(&self, dir: usize, goal: &Goal) -> Observed {
        let unmounting = *goal == Goal::Unmounted;
        let target = self.mounts[dir].map_or(TargetState::Free, |mount| TargetState::Ours {
            read_only: mount.read_only,
        });
        let asset = self.asset.as_ref().filter(|_| !unmounting);
        let asset = asset.map(|(size, mark)| Asset::new(Bytes(*size), Some(mark.clone())));
        let device = self
            .mapped
            .filter(|_| asset.is_some())
            .map(|size| DeviceState {
                size: Bytes(size),
                in_use: self.is_mounted(),
                content: self.content(size),
            });
        Observed {
            asset,
            device,
            target,
            used_by_pods: self.used_by_pods(dir),
            takes_no_writes: self.aborted,
            growth_refused: false,
        }
    }

    fn content(&self, device: u64) -> Content {
        let ready = self
            .asset
            .as_ref()
            .is_some_and(|(_, mark)| mark.state == State::Ready);
        match self.disk {
            Disk::Zero => Content::Blank,
            Disk::HalfMade => Content::Foreign("half a file system"),
            Disk::Alien => Content::Foreign("unsigned data"),
            Disk::Dead => Content::Unreadable,
            Disk::Filesystem { .. } if !ready => Content::Foreign("another file system"),
            Disk::Filesystem { size, .. } if size > device => {
                Content::Truncated { size: Bytes(size) }
            }
            Disk::Filesystem { size, .. } => Content::Ours {
                size: Bytes(size),
                slack: Bytes(0),
            },
        }
    }

    /// Returns all states in which `step` can be interrupted; the last one is the completed step.
    pub fn act(&self, dir: usize, step: &Step) -> Vec<Model> {
        let mut cuts = vec![self.clone()];
        if self.refuses(step) {
            return cuts;
        }
        let mut model = self.clone();
        match step {
            Step::Create { size } => model.asset = Some((size.0, blank_mark())),
            Step::Mark(mark) => {
                if may_remove(step) {
                    cuts.push(Model {
                        asset: None,
                        disk: Disk::Zero,
                        ..self.clone()
                    });
                }
                *model.mark() = mark.clone();
            }
            Step::Map => model.mapped = model.asset.as_ref().map(|(size, _)| *size),
            Step::Unmap => {
                assert!(!self.is_mounted(), "unmapped under a mount");
                model.mapped = None;
            }
            Step::Format(kind) => model.format(*kind, &mut cuts),
            Step::GrowStorage { to } => {
                let (size, _) = model.asset.as_mut().expect("grew no volume");
                assert!(to.0 >= *size, "shrank the storage");
                *size = to.0;
                cuts.push(model.clone());
                model.mapped = model.mapped.map(|_| to.0);
            }
            Step::GrowFilesystem => model.grow_filesystem(&mut cuts),
            Step::Mount { read_only } => {
                assert!(self.mounts[dir].is_none(), "stacked a mount");
                assert!(matches!(self.disk, Disk::Filesystem { .. }) && self.mapped.is_some());
                // An old kernel mounts first and makes the mount read-only afterwards.
                for read_only in [false, *read_only] {
                    cuts.push(model.clone());
                    model.mounts[dir] = Some(Directory {
                        read_only,
                        running: false,
                    });
                }
            }
            Step::SetReadOnly(read_only) => {
                let mount = model.mounts[dir].as_mut().expect("nothing mounted");
                mount.read_only = *read_only;
            }
            Step::Unmount => {
                model.mounts[dir] = None;
                model.aborted &= model.is_mounted();
            }
            Step::Destroy => {
                assert!(
                    self.mapped.is_none() && !self.is_mounted(),
                    "destroyed in use"
                );
                assert_eq!(
                    model.mark().state,
                    State::Deleting,
                    "destroyed before it was marked"
                );
                model.disk = Disk::Zero;
                cuts.push(model.clone());
                model.asset = None;
            }
        }
        cuts.push(model);
        cuts
    }

    fn format(&mut self, kind: Filesystem, cuts: &mut Vec<Model>) {
        match self.mark().state {
            State::Blank => assert_eq!(self.disk, Disk::Zero, "formatted over data"),
            State::Formatting => assert!(!self.has_data(), "formatted over data"),
            state => panic!("formatted in state {state:?}"),
        }
        let asked = self.mark().asked.unwrap_or(kind);
        assert_eq!(asked, kind, "formatted otherwise than it was made for");
        let format = Some(Format {
            filesystem: kind,
            uuid: uuid(),
        });
        *self.mark() = Mark {
            state: State::Formatting,
            format,
            ..self.mark().clone()
        };
        cuts.push(self.clone());
        self.disk = Disk::HalfMade;
        cuts.push(self.clone());
        self.disk = Disk::Filesystem {
            kind,
            size: self.mapped.expect("formatted no device"),
            torn: false,
            data: false,
        };
        cuts.push(self.clone());
        *self.mark() = self.mark().with_state(State::Ready);
    }

    fn grow_filesystem(&mut self, cuts: &mut Vec<Model>) {
        let Disk::Filesystem {
            kind, size, data, ..
        } = self.disk
        else {
            panic!("grew no file system");
        };
        let device = self.mapped.expect("grew a file system without a device");
        assert!(device >= size, "shrank the file system");
        for torn in [true, false] {
            self.disk = Disk::Filesystem {
                kind,
                size: device,
                torn,
                data,
            };
            cuts.push(self.clone());
        }
        self.mark().growing = None;
    }

    /// The state after the process ended, when nobody holds the device any more.
    pub fn released(mut self) -> Model {
        if self.autoclear && !self.is_mounted() {
            self.mapped = None;
        }
        self
    }

    pub fn rebooted(mut self) -> Model {
        self.mounts = [None; DIRECTORIES];
        self.aborted = false;
        self.mapped = None;
        self
    }

    /// Returns what kubelet, pods, disks and administrators may do between callouts.
    pub fn environment(&self) -> Vec<Model> {
        let mut next = vec![self.clone().rebooted()];
        for pod in 1..DIRECTORIES {
            if let Some(mount) = self.mounts[pod] {
                let mut model = self.clone();
                model.mounts[pod] = Some(Directory {
                    running: !mount.running,
                    ..mount
                });
                if let (Disk::Filesystem { data, .. }, false, false) =
                    (&mut model.disk, mount.read_only, mount.running)
                {
                    *data = true;
                }
                next.push(model);
            }
        }
        if self.is_mounted() {
            next.push(Model {
                aborted: true,
                ..self.clone()
            });
        }
        let ready = self
            .asset
            .as_ref()
            .is_some_and(|(_, mark)| mark.state == State::Ready);
        if ready && !self.is_mounted() && self.mapped.is_none() {
            for disk in [Disk::Dead, Disk::Alien, Disk::Zero] {
                next.push(Model {
                    disk,
                    ..self.clone()
                });
            }
            let mut truncated = self.clone();
            truncated.asset.as_mut().expect("checked").0 = 1;
            next.push(truncated);
        }
        next
    }
}

/// The end of a callout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Success(Model, Vec<Step>),
    Refused(ErrorKind, Model, Vec<Step>),
    NoProgress,
}

/// Runs one whole callout without an interruption.
pub fn callout(start: &Model, dir: usize, goal: &Goal) -> End {
    let mut world = Play {
        model: start.clone(),
        dir,
        steps: Vec::new(),
    };
    match reconcile(&mut world, goal) {
        Ok(_) => End::Success(world.model.released(), world.steps),
        Err(error) if error.kind() == ErrorKind::Bug => End::NoProgress,
        Err(error) => End::Refused(error.kind(), world.model.released(), world.steps),
    }
}

/// The model as a world for `reconcile`.
struct Play {
    model: Model,
    dir: usize,
    steps: Vec<Step>,
}

impl World for Play {
    fn observe(&mut self, goal: &Goal) -> Result<Observed> {
        Ok(self.model.seen(self.dir, goal))
    }

    fn act(&mut self, step: &Step) -> Result<()> {
        if self.model.refuses(step) {
            let kind = match self.model.aborted {
                true => ErrorKind::Storage,
                false => ErrorKind::CapabilityMissing,
            };
            return Err(Error::new(kind, "refused"));
        }
        self.model = self
            .model
            .act(self.dir, step)
            .pop()
            .expect("a step ends somewhere");
        self.steps.push(step.clone());
        Ok(())
    }
}
