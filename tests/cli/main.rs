//! What the executables say on their command lines, without touching storage.

#[path = "../examples/mod.rs"]
mod examples;
mod process;
mod spec;

use flexvol_testing::run_layer;
use std::process::ExitCode;

fn main() -> ExitCode {
    process::double().unwrap_or_else(|| run_layer("cli", &[process::TESTS, spec::TESTS]))
}
