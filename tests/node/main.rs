//! What the driver and its crates do with real loop devices, mounts and file systems. Needs root.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(
    clippy::print_stdout,
    reason = "time-boxed tests print how far they came"
)]

mod adopt;
mod bad_input;
mod bench;
mod by_hand;
mod demo;
mod directory;
#[path = "../examples/mod.rs"]
mod examples;
mod format_guard;
mod gc;
mod guards;
mod host_exec;
mod host_grow;
mod host_lock;
mod host_loop;
mod host_mount;
mod host_pool;
mod host_probe;
mod kill;
mod lifecycle;
mod meddling;
mod people;
#[path = "../recordings/mod.rs"]
mod recordings;
mod replay;
mod secrets;
mod spec;
mod storm;
mod vendors;

use flexvol_testing::{Sandbox, run_layer};
use std::{env, path::PathBuf, process::ExitCode};

fn main() -> ExitCode {
    let tests = [
        adopt::TESTS,
        bad_input::TESTS,
        by_hand::TESTS,
        demo::TESTS,
        directory::TESTS,
        format_guard::TESTS,
        gc::TESTS,
        guards::TESTS,
        host_exec::TESTS,
        host_grow::TESTS,
        host_lock::TESTS,
        host_loop::TESTS,
        host_mount::TESTS,
        host_pool::TESTS,
        host_probe::TESTS,
        kill::TESTS,
        lifecycle::TESTS,
        meddling::TESTS,
        people::TESTS,
        replay::TESTS,
        secrets::TESTS,
        spec::TESTS,
        storm::TESTS,
        vendors::TESTS,
    ];
    run_layer("node", &tests)
}

/// The driver's executable: the one that was built with this test, or `FLEXVOL_EXECUTABLE` where
/// the test was carried to another machine.
fn executable() -> PathBuf {
    env::var_os("FLEXVOL_EXECUTABLE").map_or_else(
        || PathBuf::from(env!("CARGO_BIN_EXE_flexvol")),
        PathBuf::from,
    )
}

fn sandbox() -> Sandbox {
    Sandbox::new(&executable())
}
