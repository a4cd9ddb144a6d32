//! What a real Kubernetes does with the driver: a whole node with its control plane, driven by
//! kubectl alone, looked at from inside the pods and from the host. Needs root.
//!
//! `FLEXVOL_KUBERNETES=1.20.2` chooses the release; without it the newest that is tested.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(clippy::print_stdout, reason = "a run says which server answers")]

mod accidents;
mod attached;
mod baseline;
mod calls;
mod crowd;
mod drivers;
mod failures;
mod growth;
mod lab;
mod objects;
mod pods;
mod readme;
mod recorded;
mod restarts;
mod scenario;
mod tenants;
mod watching;

use flexvol_testing::run_layer;
use std::process::ExitCode;

fn main() -> ExitCode {
    let tests = [
        attached::TESTS,
        crowd::TESTS,
        drivers::TESTS,
        failures::TESTS,
        growth::TESTS,
        pods::TESTS,
        readme::TESTS,
        recorded::TESTS,
        restarts::TESTS,
        tenants::TESTS,
    ];
    let name = format!("kubernetes {}", lab::version());
    let before = lab::machine();
    let status = run_layer(&name, &tests);
    lab::end();
    assert_eq!(lab::machine(), before, "the machine has changed");
    status
}
