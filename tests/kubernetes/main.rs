//! What a real Kubernetes does with the driver: a whole node with its control plane, driven by
//! kubectl alone, looked at from inside the pods and from the host. Needs root.
//!
//! `FLEXVOL_KUBERNETES=1.20.2` chooses the release; without it the newest that is tested.
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
mod claims_of_sets;
mod claims_offline;
mod controllers;
mod crowd;
mod drivers;
mod failures;
mod growth;
mod lab;
mod objects;
mod pods;
mod readme;
mod recorded;
mod recorded_api;
mod restarts;
mod scenario;
mod tenants;
mod watching;
mod webhooks;
mod webhooks_of_sets;

use flexvol_testing::run_layer;
use std::process::ExitCode;

fn main() -> ExitCode {
    let tests = [
        admission::TESTS,
        attached::TESTS,
        chart::TESTS,
        claims::TESTS,
        claims_away::TESTS,
        claims_cost::TESTS,
        claims_in_trouble::TESTS,
        claims_killed::TESTS,
        claims_left_alone::TESTS,
        claims_of_sets::TESTS,
        claims_offline::TESTS,
        crowd::TESTS,
        drivers::TESTS,
        failures::TESTS,
        growth::TESTS,
        pods::TESTS,
        readme::TESTS,
        recorded::TESTS,
        recorded_api::TESTS,
        restarts::TESTS,
        tenants::TESTS,
        webhooks::TESTS,
        webhooks_of_sets::TESTS,
    ];
    let name = format!("kubernetes {}", lab::version());
    let before = lab::machine();
    let status = run_layer(&name, &tests);
    lab::end();
    assert_eq!(lab::machine(), before, "the machine has changed");
    status
}
