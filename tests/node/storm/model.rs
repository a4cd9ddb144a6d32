//! A model of one volume under concurrent callouts: is there an order of them that explains every
//! reply?

use std::{collections::BTreeSet, time::Instant};

/// Number of pods.
pub const PODS: usize = 2;

/// One volume as its callers know it: the one that existed when the storm began. A volume made later with its
/// name is another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    pub gone: bool,
    pub formatted: bool,
    /// Its size in MiB.
    pub mebibytes: u64,
    /// Whether each pod has it mounted, and whether read-only.
    pub mounts: [Option<bool>; PODS],
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub enum Asked {
    /// Whether the reply was this volume, and not a new one.
    Provision {
        is_this: bool,
    },
    Mount {
        pod: usize,
        read_only: bool,
    },
    Unmount {
        pod: usize,
    },
    Expand {
        mebibytes: u64,
    },
    Delete,
}

/// A callout with its reply.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    pub asked: Asked,
    pub success: bool,
    /// Whether it failed because another callout had the volume's lock for as long as a callout waits for that.
    pub gave_up: bool,
    pub began: Instant,
    pub ended: Instant,
}

impl State {
    /// The state after a callout, if its reply is correct in this state.
    fn after(mut self, call: &Answered) -> Option<State> {
        if call.gave_up {
            return Some(self);
        }
        let in_use = self.mounts.iter().any(Option::is_some);
        let right = match call.asked {
            Asked::Provision { is_this } => call.success && is_this != self.gone,
            Asked::Mount { .. } => call.success != self.gone,
            // Whatever the volume's state is, it is not mounted afterwards.
            Asked::Unmount { .. } => call.success,
            Asked::Expand { .. } => call.success == (!self.gone && self.formatted),
            Asked::Delete => call.success != (in_use && !self.gone),
        };
        if !right {
            return None;
        }
        match call.asked {
            Asked::Mount { pod, read_only } if call.success => {
                self.formatted = true;
                self.mounts[pod] = Some(read_only);
            }
            Asked::Unmount { pod } => self.mounts[pod] = None,
            Asked::Expand { mebibytes } if call.success => {
                self.mebibytes = self.mebibytes.max(mebibytes);
            }
            Asked::Delete if call.success => self.gone = true,
            _ => {}
        }
        Some(self)
    }
}

/// The states after those orders of the callouts in which each reply is correct, and a callout that ended before
/// another began comes first. None if the replies contradict each other.
pub fn explain(from: State, calls: &[Answered]) -> BTreeSet<State> {
    let mut ends = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let all = (1u64 << calls.len()) - 1;
    let mut open = vec![(0, from)];
    while let Some((done, state)) = open.pop() {
        if !seen.insert((done, state)) {
            continue;
        }
        if done == all {
            ends.insert(state);
        }
        let left = || {
            let all = calls.iter().enumerate();
            all.filter(move |(at, _)| done >> at & 1 == 0)
        };
        for (at, call) in left() {
            let is_next = left().all(|(_, other)| other.ended >= call.began);
            if let Some(state) = is_next.then(|| state.after(call)).flatten() {
                open.push((done | 1 << at, state));
            }
        }
    }
    ends
}

/// Checks that a volume with a newer mark was only unmounted, for which no mark is needed.
pub fn expect_refused(history: &[Answered], seed: u64) {
    for call in history {
        let unmount = matches!(call.asked, Asked::Unmount { .. });
        assert_eq!(
            call.success, unmount,
            "seed {seed}: {call:?} of a newer volume"
        );
    }
}

/// A test of the checker: it must refuse impossible histories.
pub fn refuses_contradictions() {
    let now = Instant::now();
    let call = |asked, success, from: u64, to: u64| Answered {
        asked,
        success,
        gave_up: false,
        began: now + std::time::Duration::from_millis(from),
        ended: now + std::time::Duration::from_millis(to),
    };
    let mount = |success, from, to| {
        let asked = Asked::Mount {
            pod: 0,
            read_only: false,
        };
        call(asked, success, from, to)
    };
    let delete = |success, from, to| call(Asked::Delete, success, from, to);
    let explained = |calls: &[Answered]| explain(State::default(), calls).len();
    // Concurrent: either may have been first.
    assert_eq!(explained(&[mount(true, 0, 9), delete(false, 0, 9)]), 1);
    assert_eq!(explained(&[mount(false, 0, 9), delete(true, 0, 9)]), 1);
    // Both cannot have succeeded, and a failed mount needs a reason.
    assert_eq!(explained(&[mount(true, 0, 9), delete(true, 0, 9)]), 0);
    assert_eq!(explained(&[mount(false, 0, 9)]), 0);
    // Unless it waited in vain.
    let gave_up = Answered {
        gave_up: true,
        ..mount(false, 0, 9)
    };
    assert_eq!(explained(&[gave_up]), 1);
    // A call that ended earlier cannot come later.
    assert_eq!(explained(&[mount(false, 0, 1), delete(true, 2, 3)]), 0);
    assert_eq!(explained(&[delete(true, 0, 1), mount(false, 2, 3)]), 1);
}
