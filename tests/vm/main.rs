//! Tests in a virtual machine with a Debian kernel, device-mapper, quotas and every capability: node tests
//! that also run on this machine, and tests that only the host of a machine can make. Needs root and qemu,
//! but no KVM.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(
    clippy::print_stdout,
    reason = "tests in the machine say how far they came"
)]

mod chosen;
mod guest;
mod machine;
mod protected;
mod tester;

use flexvol_testing::{VIRTUAL_MACHINE as NEEDS, cases, run_cases};
use std::{env, process::ExitCode, thread};

fn main() -> ExitCode {
    if let Some(place) = machine::place_of_held() {
        return machine::hold(&place);
    }
    let missing: Vec<_> = NEEDS.iter().filter_map(|need| need.missing()).collect();
    let strict = env::var_os("CI").is_some_and(|ci| ci == "true");
    if !missing.is_empty() && !strict {
        println!("layer vm: 0 tests, 0 points, 0 s, all not run here");
        println!("  not run: layer vm: no {}", missing.join(", no "));
        return ExitCode::SUCCESS;
    }
    let mut all = cases(&[machine::TESTS, protected::TESTS, tester::TESTS]);
    all.extend(guest::cases());
    let processors = thread::available_parallelism().map_or(1, usize::from);
    // A machine has one processor and a gibibyte of memory.
    run_cases("vm", all, processors.min(4))
}
