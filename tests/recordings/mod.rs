//! Recorded calls of real releases of Kubernetes, for tests that parse them and tests that replay them.

use serde_json::Value;

/// All calls that one release made to one driver's installations, in order.
#[derive(Clone, Copy, Debug)]
pub struct Recording {
    pub release: &'static str,
    text: &'static str,
}

macro_rules! of_this_driver {
    ($release:literal) => {
        Recording {
            release: $release,
            text: include_str!(concat!("../fixtures/calls/", $release, ".jsonl")),
        }
    };
}

/// Calls to this driver. `tests/kubernetes/recorded.rs` records them.
pub const OF_THIS_DRIVER: [Recording; 5] = [
    of_this_driver!("1.20.2"),
    of_this_driver!("1.24.17"),
    of_this_driver!("1.28.15"),
    of_this_driver!("1.32.2"),
    of_this_driver!("1.37.1"),
];

/// Calls to a driver that only logged them.
pub const OF_ANOTHER: Recording = Recording {
    release: "1.20.2",
    text: include_str!("../fixtures/kubernetes-1.20.2.jsonl"),
};

impl Recording {
    /// The calls: caller, driver, arguments, reply.
    pub fn lines(self) -> Vec<Value> {
        let lines = self.text.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}
