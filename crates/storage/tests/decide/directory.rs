//! The exploration for directory volumes: `decide` takes them through their life with the steps that a
//! directory has, and the retry repairs every interruption.

use crate::{
    DELETED, grow,
    model::{blank_mark, may_remove},
    mount,
};
use flexvol_sdk::{Bytes, ErrorKind, Filesystem};
use flexvol_storage::{
    Asset, Goal, Mark, Observed,
    decide::{Next, Step, decide},
    mark::State,
    observed::{Content, DeviceState, TargetState},
};
use std::collections::HashSet;

/// The size of the pool, and so the largest limit.
const POOL: u64 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Mounted {
    read_only: bool,
    half_made: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Model {
    asset: Option<(u64, Mark)>,
    mounts: [Option<Mounted>; 2],
    data: bool,
}

enum Acted {
    /// All states in which the step can be interrupted; the last one is the completed step.
    Done(Vec<Model>),
    Failed(ErrorKind),
}

#[derive(Debug)]
enum End {
    Success(Model),
    Failed(ErrorKind, Model),
    NoProgress,
}

impl Model {
    const NOTHING: Model = Model {
        asset: None,
        mounts: [None; 2],
        data: false,
    };

    fn seen(&self, dir: usize, goal: &Goal) -> Observed {
        let asset = self.asset.as_ref().filter(|_| *goal != Goal::Unmounted);
        let asset = asset
            .map(|(size, mark)| Asset::new(Bytes(*size), Some(mark.clone())).with_thin(true, true));
        let in_use = goal.ends_use() && self.mounts.iter().any(Option::is_some);
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
        let is_smaller = asset
            .as_ref()
            .is_some_and(|asset| matches!(goal, Goal::Grown { to, .. } if asset.size < *to));
        Observed {
            asset,
            device,
            target: match self.mounts[dir] {
                None => TargetState::Free,
                Some(mount) if mount.half_made => TargetState::HalfMade,
                Some(mount) => TargetState::Ours {
                    read_only: mount.read_only,
                },
            },
            used_by_pods: is_smaller && self.mounts[1 - dir].is_some(),
            takes_no_writes: false,
            growth_refused: false,
        }
    }

    fn act(&self, dir: usize, step: &Step) -> Acted {
        let mut cuts = vec![self.clone()];
        let mut model = self.clone();
        match step {
            Step::Create { size } => {
                model.asset = Some((size.0, blank_mark().with_state(State::Ready)));
            }
            Step::Mark(mark) => {
                if may_remove(step) {
                    cuts.push(Model {
                        asset: None,
                        data: false,
                        ..self.clone()
                    });
                }
                model.asset.as_mut().expect("a volume").1 = mark.clone();
            }
            Step::GrowStorage { to } if to.0 > POOL => return Acted::Failed(ErrorKind::Exhausted),
            Step::GrowStorage { to } => model.asset.as_mut().expect("a volume").0 = to.0,
            Step::GrowFilesystem => model.asset.as_mut().expect("a volume").1.growing = None,
            Step::Mount { read_only } => {
                assert_eq!(self.mounts[dir], None, "stacked a mount");
                for half_made in [true, false] {
                    model.mounts[dir] = Some(Mounted {
                        read_only: *read_only && !half_made,
                        half_made,
                    });
                    cuts.push(model.clone());
                }
            }
            Step::SetReadOnly(read_only) => {
                model.mounts[dir].as_mut().expect("a mount").read_only = *read_only;
            }
            Step::Unmount => model.mounts[dir] = None,
            Step::Destroy => {
                assert_eq!(self.mounts, [None; 2], "destroyed in use");
                let (_, mark) = self.asset.as_ref().expect("a volume");
                assert_eq!(mark.state, State::Deleting, "destroyed without a mark");
                model.data = false;
                cuts.push(model.clone());
                model.asset = None;
            }
            Step::Map | Step::Unmap | Step::Format(_) => panic!("{step:?} of a directory"),
        }
        cuts.push(model);
        Acted::Done(cuts)
    }

    fn callout(&self, dir: usize, goal: &Goal) -> End {
        let mut model = self.clone();
        for _ in 0..24 {
            let step = match decide(&model.seen(dir, goal), goal) {
                Next::Reached => return End::Success(model),
                Next::Refuse(kind, _) => return End::Failed(kind, model),
                Next::Do(step) => step,
            };
            match model.act(dir, &step) {
                Acted::Done(cuts) => model = cuts.into_iter().next_back().expect("an end"),
                Acted::Failed(kind) => return End::Failed(kind, model),
            }
        }
        End::NoProgress
    }

    fn holds(&self, dir: usize, goal: &Goal) -> bool {
        let size = self.asset.as_ref().map_or(0, |(size, _)| *size);
        match goal {
            Goal::Provisioned { size: asked } => size >= asked.0,
            Goal::StorageGrown { to } | Goal::Grown { to, .. } => size >= to.0,
            Goal::Unmounted => self.mounts[dir].is_none(),
            Goal::Gone => self.asset.is_none() && self.mounts == [None; 2],
            Goal::Deleted { .. } => {
                let kept = |(_, mark): &(u64, Mark)| mark.deleted.is_some();
                self.asset.as_ref().is_none_or(kept) && self.mounts == [None; 2]
            }
            Goal::Restored => self
                .asset
                .as_ref()
                .is_some_and(|(_, mark)| mark.deleted.is_none()),
            Goal::Mounted { read_only, .. } => {
                let wanted = Mounted {
                    read_only: *read_only,
                    half_made: false,
                };
                size > 0 && self.mounts[dir] == Some(wanted)
            }
        }
    }

    fn environment(&self) -> Vec<Model> {
        let mut rebooted = self.clone();
        rebooted.mounts = [None; 2];
        let mut written = self.clone();
        written.data |= self.mounts.iter().flatten().any(|mount| !mount.read_only);
        vec![rebooted, written]
    }
}

fn callouts() -> Vec<(usize, Goal)> {
    let mut all = vec![
        (0, Goal::Provisioned { size: Bytes(1) }),
        (0, Goal::StorageGrown { to: Bytes(2) }),
        (0, DELETED),
        (0, Goal::Restored),
        (0, Goal::Gone),
    ];
    for dir in 0..2 {
        all.push((dir, Goal::Unmounted));
        // A directory has no file system of its own that could differ from the requested one.
        for filesystem in [Filesystem::Xfs, Filesystem::Ext4] {
            for offline in [false, true] {
                let mount = |read_only| (dir, mount(filesystem, offline, read_only));
                all.extend([false, true].map(mount));
            }
        }
        for to in [2, 3] {
            all.extend([false, true].map(|offline| (dir, grow(to, offline, false))));
        }
    }
    all
}

#[test]
fn a_directory_reaches_its_goals_from_every_cut_and_loses_nothing() {
    let (mut states, mut cuts) = (HashSet::new(), 0);
    let mut todo = vec![Model::NOTHING];
    while let Some(model) = todo.pop() {
        if !states.insert(model.clone()) {
            continue;
        }
        todo.extend(model.environment());
        for (dir, goal) in callouts() {
            let whole = model.callout(dir, &goal);
            match &whole {
                End::Success(end) => assert!(end.holds(dir, &goal), "{goal:?} from {model:?}"),
                End::Failed(kind, end) => {
                    assert_ne!(goal, Goal::Unmounted, "{kind:?} from {model:?}");
                    let grown = end.asset.as_ref().map(|(size, _)| size);
                    assert!(grown.is_none_or(|size| *size <= POOL), "{goal:?}");
                }
                End::NoProgress => panic!("{goal:?} makes no progress from {model:?}"),
            }
            let Next::Do(step) = decide(&model.seen(dir, &goal), &goal) else {
                continue;
            };
            let Acted::Done(ends) = model.act(dir, &step) else {
                continue;
            };
            for cut in ends {
                cuts += 1;
                assert!(cut.data || !model.data || may_remove(&step), "{step:?}");
                if matches!(whole, End::Success(_)) {
                    let again = cut.callout(dir, &goal);
                    assert!(
                        matches!(again, End::Success(_)),
                        "{goal:?} cut in {step:?} from {model:?}: {again:?}"
                    );
                }
                todo.push(cut);
            }
        }
    }
    println!("decide: directories: {} states, {cuts} cuts", states.len());
    let half_made = |model: &Model| model.mounts.iter().flatten().any(|mount| mount.half_made);
    assert!(states.iter().any(half_made) && cuts > states.len());
}
