//! Tests with a real Kubernetes: a whole node with its control plane. They act only through kubectl, and
//! check the result inside the pods and on the host. Needs root.
//!
//! `FLEXVOL_KUBERNETES=1.20.2` selects the release. The default is the newest tested one.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(clippy::print_stdout, reason = "a run says which server answers")]

mod accidents;
mod admission;
mod attached;
mod baseline;
mod calls;
mod chart;
mod claims;
mod claims_away;
mod claims_cost;
mod claims_in_trouble;
mod claims_killed;
mod claims_left_alone;
mod claims_mounted;
mod claims_of_sets;
mod claims_offline;
mod claims_quota;
mod claims_recovered;
mod claims_scheduled;
mod claims_storm;
mod controllers;
mod crowd;
mod documents;
mod drivers;
mod failures;
mod growth;
mod lab;
mod objects;
mod pods;
mod recorded;
mod recorded_api;
mod restarts;
mod scenario;
mod tenants;
mod watching;
mod webhooks;
mod webhooks_of_sets;

use flexvol_testing::{Test, run_layer};
use std::process::ExitCode;

/// The scenarios, each with the first release that has the features they need. The recorded API server is that
/// of the newest release.
const TESTS: &[(&str, &[Test])] = &[
    ("1.30.0", admission::POLICIES),
    ("1.30.0", admission::controller::TESTS),
    ("1.30.0", admission::volumes::TESTS),
    (controllers::TOKENS_NAME_NODES, admission::AGENTS),
    (ALL, attached::TESTS),
    (ALL, chart::TESTS),
    (ALL, claims::TESTS),
    (ALL, claims_away::TESTS),
    (ALL, claims_cost::TESTS),
    (ALL, claims_in_trouble::TESTS),
    (ALL, claims_killed::TESTS),
    (ALL, claims_left_alone::TESTS),
    (ALL, claims_mounted::TESTS),
    (ALL, claims_of_sets::TESTS),
    ("1.22.0", claims_offline::TESTS),
    (ALL, claims_quota::TESTS),
    (ALL, claims_recovered::TESTS),
    (claims_scheduled::SINCE, claims_scheduled::TESTS),
    (ALL, claims_storm::TESTS),
    (ALL, crowd::TESTS),
    (ALL, drivers::TESTS),
    (ALL, failures::TESTS),
    (ALL, growth::TESTS),
    (ALL, pods::TESTS),
    (ALL, documents::TESTS),
    (ALL, recorded::TESTS),
    ("1.37.1", recorded_api::TESTS),
    (ALL, restarts::TESTS),
    (ALL, tenants::TESTS),
    (webhooks::SINCE, webhooks::TESTS),
    (webhooks::SINCE, webhooks_of_sets::TESTS),
];

const ALL: &str = "1.20.2";

fn main() -> ExitCode {
    let tests: Vec<_> = TESTS
        .iter()
        .filter(|(since, _)| lab::version() >= since.parse().unwrap())
        .map(|(_, tests)| *tests)
        .collect();
    let name = format!("kubernetes {}", lab::version());
    let before = lab::machine();
    let status = run_layer(&name, &tests);
    lab::end();
    assert_eq!(lab::machine(), before, "the machine has changed");
    status
}
