//! What one volume may have gone through when many callouts ran at once: is there an order of them
//! that explains every answer?

use std::{collections::BTreeSet, time::Instant};

/// How many pods there are.
pub const PODS: usize = 2;

/// One volume as its callers know it. It is the one that was there when the storm began; one of its
/// name that is made after it was deleted is another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    pub gone: bool,
    pub formatted: bool,
    /// Its size, in MiB.
    pub mebibytes: u64,
    /// Whether each pod has it, and may only read it.
    pub mounts: [Option<bool>; PODS],
}

/// What was asked.
#[derive(Clone, Copy, Debug)]
pub enum Asked {
    /// Whether the answer was this volume, and not one made anew.
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

/// A callout that was answered.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    pub asked: Asked,
    pub success: bool,
    pub began: Instant,
    pub ended: Instant,
}

impl State {
    /// The state after a callout, if this answer is right in this state.
    fn after(mut self, call: &Answered) -> Option<State> {
        let in_use = self.mounts.iter().any(Option::is_some);
        let right = match call.asked {
            Asked::Provision { is_this } => call.success && is_this != self.gone,
            Asked::Mount { .. } => call.success != self.gone,
            // Whatever there is, it is not mounted afterwards.
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

/// The states that some order of these callouts leads to in which each answer is right, and in which
/// one that had ended before another began comes first. None: the answers contradict each other.
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

/// The checker's own check: it refuses what cannot have been.
pub fn refuses_contradictions() {
    let now = Instant::now();
    let call = |asked, success, from: u64, to: u64| Answered {
        asked,
        success,
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
    // At the same time, either may have been first.
    assert_eq!(explained(&[mount(true, 0, 9), delete(false, 0, 9)]), 1);
    assert_eq!(explained(&[mount(false, 0, 9), delete(true, 0, 9)]), 1);
    // Both cannot have succeeded, and a mount that failed had a reason.
    assert_eq!(explained(&[mount(true, 0, 9), delete(true, 0, 9)]), 0);
    assert_eq!(explained(&[mount(false, 0, 9)]), 0);
    // What ended before does not come after.
    assert_eq!(explained(&[mount(false, 0, 1), delete(true, 2, 3)]), 0);
    assert_eq!(explained(&[delete(true, 0, 1), mount(false, 2, 3)]), 1);
}
