//! Explores every state and goal, with an interruption inside every step and with reboots, running pods and
//! failing disks in between. The retry must reach its goal, and no data may be lost.

mod another_name;
mod directory;
mod matrix;
mod model;

use another_name::delete_as_another;
use flexvol_host::{
    Uuid,
    clock::{Moment, UnixTime},
};
use flexvol_sdk::{Bytes, Filesystem};
use flexvol_storage::{
    Goal, Mark,
    decide::{Next, Step, decide},
    mark::State,
    observed::{Content, Requester},
};
use matrix::ready;
use model::{DIRECTORIES, Disk, End, GLOBAL, Model, callout, may_remove};
use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    time::Duration,
};

fn mount(filesystem: Filesystem, offline: bool, read_only: bool) -> Goal {
    Goal::Mounted {
        filesystem: Some(filesystem),
        default: Filesystem::Xfs,
        offline,
        read_only,
        requester: Requester::Namespace("default".to_owned()),
    }
}

/// A pod's volume was attached, and its namespace is not known yet.
fn mount_device(filesystem: Option<Filesystem>, offline: bool) -> Goal {
    Goal::Mounted {
        filesystem,
        default: Filesystem::Xfs,
        offline,
        read_only: false,
        requester: Requester::Node,
    }
}

fn grow(to: u64, offline: bool, read_only: bool) -> Goal {
    Goal::Grown {
        to: Bytes(to),
        offline,
        read_only,
    }
}

pub const NOW: Moment = Moment {
    unix: UnixTime(5),
    boot: Uuid::from_bytes([3; 16]),
    uptime: 5,
};

const fn delete(keep: Option<Duration>) -> Goal {
    Goal::Deleted {
        name: None,
        now: NOW,
        keep,
    }
}

/// Deletes a volume.
pub const DELETE: Goal = delete(Some(Duration::ZERO));

/// Deletes a volume that is kept.
pub const DELETED: Goal = delete(Some(Duration::from_secs(1)));

/// Deletes a volume with an unknown retention time.
pub const UNKNOWN: Goal = delete(None);

/// Returns every callout that a driver of this policy can get, with its directory.
fn callouts(offline: bool) -> Vec<(usize, Goal)> {
    let mut all = vec![
        (GLOBAL, Goal::Provisioned { size: Bytes(1) }),
        (GLOBAL, Goal::StorageGrown { to: Bytes(2) }),
        (GLOBAL, DELETE),
        (GLOBAL, DELETED),
        (GLOBAL, UNKNOWN),
        (GLOBAL, delete_as_another()),
        (GLOBAL, Goal::Restored),
        (GLOBAL, Goal::Gone),
        (GLOBAL, mount(Filesystem::Xfs, offline, false)),
        (1, mount(Filesystem::Ext4, offline, false)),
        (GLOBAL, mount_device(None, offline)),
        (GLOBAL, mount_device(Some(Filesystem::Xfs), offline)),
        (GLOBAL, mount_device(Some(Filesystem::Ext4), offline)),
    ];
    for dir in 1..DIRECTORIES {
        let xfs = |read_only| (dir, mount(Filesystem::Xfs, offline, read_only));
        all.extend([false, true].map(xfs));
    }
    for dir in 0..DIRECTORIES {
        all.push((dir, Goal::Unmounted));
        all.extend([2, 3].map(|to| (dir, grow(to, offline, false))));
        all.push((dir, grow(2, offline, true)));
    }
    all
}

#[derive(Default)]
struct Exploration {
    states: HashSet<Model>,
    cuts: usize,
    longest: usize,
    faults: BTreeMap<String, String>,
}

impl Exploration {
    fn fault(&mut self, what: String, model: &Model) {
        self.faults
            .entry(what)
            .or_insert_with(|| format!("{model:?}"));
    }

    fn check_end(&mut self, start: &Model, dir: usize, goal: &Goal, end: &End) {
        match end {
            End::NoProgress => self.fault(format!("{goal:?} makes no progress"), start),
            End::Success(end, steps) => {
                self.longest = self.longest.max(steps.len());
                if let Some(contradiction) = contradiction(start, end, dir, goal) {
                    self.fault(format!("{goal:?} is a Success, but {contradiction}"), start);
                }
            }
            End::Refused(..) if *goal == Goal::Unmounted => {
                self.fault("unmount was refused".to_owned(), start);
            }
            End::Refused(_, end, done) => {
                if *goal == delete_as_another() && !done.is_empty() {
                    self.fault(format!("{goal:?} was refused after {done:?}"), start);
                }
                if end.mounts != start.mounts {
                    self.fault(format!("{goal:?} failed and left mounts behind"), start);
                }
            }
        }
    }

    fn check_step(&mut self, model: &Model, dir: usize, goal: &Goal, step: &Step) {
        let grows = matches!(step, Step::GrowStorage { .. } | Step::GrowFilesystem);
        let runs = model.mounts.iter().flatten().any(|mount| mount.running);
        if *step == Step::GrowFilesystem && model.offline && model.used_by_pods(dir) {
            let what = format!("the file system grows under a pod, by {goal:?}, offline policy");
            self.fault(what, model);
        }
        let is_ready = |(_, mark): &(u64, Mark)| mark.state == State::Ready;
        let is_kept = |(_, mark): &(u64, Mark)| mark.deleted.is_some();
        let keeps = match goal {
            Goal::Deleted { .. } if *goal != DELETE => true,
            // A repeated deletion does not shorten a promised retention time.
            Goal::Deleted { .. } => model.asset.as_ref().is_some_and(is_kept),
            _ => false,
        };
        if keeps && *step != Step::Unmap && model.asset.as_ref().is_some_and(is_ready) {
            let kept = matches!(step, Step::Mark(mark) if mark.state == State::Ready);
            if !kept {
                self.fault(format!("{step:?} of a volume that is to be kept"), model);
            }
        }
        if let (Step::Format(kind), Goal::Mounted { requester, .. }) = (step, goal)
            && *requester == Requester::Node
            && model
                .asset
                .as_ref()
                .is_some_and(|(_, mark)| *kind != mark.filesystem().unwrap_or(Filesystem::Xfs))
        {
            self.fault(format!("{kind:?} was a stranger's choice"), model);
        }
        if grows && runs && matches!(goal, Goal::Grown { offline: true, .. }) {
            self.fault(
                format!("{step:?} while a pod runs, by offline policy, {dir}"),
                model,
            );
        }
    }

    fn explore(&mut self, start: Vec<Model>) {
        let callouts = [false, true].map(callouts);
        let mut todo = VecDeque::from(start);
        while let Some(model) = todo.pop_front() {
            if !self.states.insert(model.clone()) {
                continue;
            }
            todo.extend(model.environment());
            for (dir, goal) in &callouts[usize::from(model.offline)] {
                let whole = callout(&model, *dir, goal);
                self.check_end(&model, *dir, goal, &whole);
                // Later states of this callout are reached through the interruption after its first step.
                let Next::Do(step) = decide(&model.seen(*dir, goal), goal) else {
                    continue;
                };
                self.check_step(&model, *dir, goal, &step);
                for (at, cut) in model.act(*dir, &step).into_iter().enumerate() {
                    self.cuts += 1;
                    if model.has_data() && !cut.has_data() && !may_remove(&step) {
                        self.fault(format!("{step:?} lost data"), &model);
                    }
                    for after in [cut.clone(), cut.clone().released(), cut.rebooted()] {
                        let again = callout(&after, *dir, goal);
                        if matches!(whole, End::Success(..)) && !matches!(again, End::Success(..)) {
                            self.fault(
                                format!("cut {at} of {step:?} makes the retry of {goal:?} fail: {again:?}"),
                                &model,
                            );
                        }
                        todo.push_back(after);
                    }
                }
            }
        }
    }
}

/// Returns what contradicts a Success.
fn contradiction(start: &Model, end: &Model, dir: usize, goal: &Goal) -> Option<&'static str> {
    let size = end.asset.as_ref().map_or(0, |(size, _)| *size);
    let whole = |at_least: u64| match end.disk {
        Disk::Filesystem { size, torn, .. } => size >= at_least && !torn,
        _ => false,
    };
    let holds = match goal {
        Goal::Provisioned { size: asked } => size >= asked.0,
        Goal::Gone => end.asset.is_none() && end.mapped.is_none() && !end.is_mounted(),
        Goal::Deleted { name: Some(_), .. } => start.asset.is_none(),
        // A missing volume may be in an unknown pool.
        Goal::Deleted { keep, .. } => {
            let kept = |(_, mark): &(u64, Mark)| mark.deleted.is_some();
            end.asset.as_ref().map_or(keep.is_some(), kept)
                && end.mapped.is_none()
                && !end.is_mounted()
        }
        Goal::Restored => end
            .asset
            .as_ref()
            .is_some_and(|(_, mark)| mark.deleted.is_none()),
        Goal::Unmounted => end.mounts[dir].is_none(),
        Goal::StorageGrown { to } => size >= to.0 && end.mapped.is_none_or(|device| device >= to.0),
        Goal::Grown { to, .. } => size >= to.0 && whole(to.0),
        Goal::Mounted { read_only, .. } => {
            let ungrowable = (!start.grows_mounted && start.is_mounted())
                || (start.offline && start.used_by_pods(dir));
            let ended = |(_, mark): &(u64, Mark)| mark.growing.is_none();
            let grown = end.mapped.is_some_and(whole) && end.asset.as_ref().is_some_and(ended);
            end.mounts[dir].is_some_and(|mount| mount.read_only == *read_only)
                && (grown || ungrowable)
                && (*read_only || !end.aborted)
        }
    };
    (!holds).then_some("it does not hold")
}

#[test]
fn a_file_system_is_looked_at_before_its_storage_grows() {
    let goal = Goal::Grown {
        to: Bytes(2),
        offline: false,
        read_only: false,
    };
    let mut seen = ready(1, 1, false, &[0]).seen(0, &goal);
    let device = seen.device.as_mut().expect("mapped");
    let content = std::mem::replace(&mut device.content, Content::NotRead);
    assert_eq!(decide(&seen, &goal), Next::Do(Step::Map));
    seen.device.as_mut().expect("mapped").content = content;
    assert!(matches!(decide(&seen, &goal), Next::Do(Step::Mark(_))));
}

#[test]
fn a_cut_anywhere_reaches_the_goal_at_its_retry_and_loses_nothing() {
    let mut exploration = Exploration::default();
    let mut start = Vec::new();
    for autoclear in [true, false] {
        start.push(Model::nothing(autoclear));
        for [grows_mounted, offline] in [[false, false], [false, true], [true, true]] {
            start.push(Model {
                grows_mounted,
                offline,
                ..Model::provisioned(Disk::Zero, autoclear)
            });
        }
        for disk in [Disk::Zero, Disk::Alien, Disk::Dead] {
            start.push(Model::provisioned(disk, autoclear));
        }
        for asked in [Filesystem::Xfs, Filesystem::Ext4] {
            let mut model = Model::provisioned(Disk::Zero, autoclear);
            model.asset.as_mut().expect("provisioned").1.asked = Some(asked);
            start.push(model);
        }
    }
    exploration.explore(start);
    println!(
        "\ndecide: {} states, {} cuts, {} callouts, at most {} steps, {} faults",
        exploration.states.len(),
        exploration.cuts,
        callouts(false).len(),
        exploration.longest,
        exploration.faults.len()
    );
    for (fault, model) in &exploration.faults {
        println!("FAULT {fault}\n  from {model}");
    }
    assert!(exploration.faults.is_empty());
    let reached = |wanted: fn(&Model) -> bool| exploration.states.iter().any(wanted);
    assert!(reached(
        |model| model.mounts.iter().flatten().count() == DIRECTORIES
    ));
    assert!(reached(|model| model
        .asset
        .as_ref()
        .is_some_and(|(_, mark)| mark.state == State::Deleting)));
    assert!(reached(|model| matches!(
        model.disk,
        Disk::Filesystem { torn: true, .. }
    )));
    assert!(exploration.longest < 16, "reconcile allows 24 steps");
}
