//! What real releases of Kubernetes called, for the layers that read it and that call it again.

use serde_json::Value;

/// All that one release called of one driver's installations, in its order.
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

/// What was called of this driver. `tests/kubernetes/recorded.rs` tells the story and records it.
pub const OF_THIS_DRIVER: [Recording; 5] = [
    of_this_driver!("1.20.2"),
    of_this_driver!("1.24.17"),
    of_this_driver!("1.28.15"),
    of_this_driver!("1.32.2"),
    of_this_driver!("1.37.1"),
];

/// What was called of a driver that only logged, before there was this one.
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
