//! Phases of the growth of stateful sets, for metrics.

use crate::support::metrics::Metrics;
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// How far a set has come with the sizes that its annotations ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Some claims cannot be asked yet, because they are not bound, or could not be asked.
    Waiting,
    /// Some claims were asked, and have not grown yet.
    Growing,
    /// The same, and the set's pods may be evicted for that.
    Restarting,
    /// The storage of some claims cannot grow, or an annotation is wrong: a person has to act.
    Failing,
    /// All claims have their size.
    Done,
}

const ALL: [Phase; 5] = [
    Phase::Waiting,
    Phase::Growing,
    Phase::Restarting,
    Phase::Failing,
    Phase::Done,
];

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Phase::Waiting => "waiting",
            Phase::Growing => "growing",
            Phase::Restarting => "restarting",
            Phase::Failing => "failing",
            Phase::Done => "done",
        }
    }
}

/// The phase of each set, as it was last found.
pub(super) struct Phases {
    all: Mutex<HashMap<String, Phase>>,
    metrics: Metrics,
}

impl Phases {
    /// Creates the phases of no sets.
    pub fn new(metrics: Metrics) -> Self {
        for phase in ALL {
            metrics.stateful_sets(phase.name()).set(0);
        }
        Phases {
            all: Mutex::default(),
            metrics,
        }
    }

    /// Sets the phase of a set; `None` if it is gone, or asks for nothing.
    pub fn put(&self, set: &str, phase: Option<Phase>) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match phase {
            Some(phase) => all.insert(set.to_owned(), phase),
            None => all.remove(set),
        };
        if let Some(before) = before {
            self.metrics.stateful_sets(before.name()).dec();
        }
        if let Some(phase) = phase {
            self.metrics.stateful_sets(phase.name()).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_set_is_counted_in_its_last_phase_until_it_is_gone() {
        let metrics = Metrics::default();
        let phases = Phases::new(metrics.clone());
        let counts = || ALL.map(|phase| metrics.stateful_sets(phase.name()).get());
        assert_eq!(counts(), [0; 5]);
        phases.put("ns/a", Some(Phase::Waiting));
        phases.put("ns/b", Some(Phase::Waiting));
        assert_eq!(counts(), [2, 0, 0, 0, 0]);
        phases.put("ns/a", Some(Phase::Failing));
        phases.put("ns/b", Some(Phase::Done));
        phases.put("ns/b", Some(Phase::Done));
        assert_eq!(counts(), [0, 0, 0, 1, 1]);
        phases.put("ns/a", None);
        phases.put("ns/a", None);
        assert_eq!(counts(), [0, 0, 0, 0, 1]);
    }
}
