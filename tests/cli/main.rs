//! The command lines of the executables, as far as they touch no storage.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod call;
mod config;
mod doctor;
mod documents;
#[path = "../examples/mod.rs"]
mod examples;
mod help;
mod install;
mod kubelets;
mod process;
mod recorded;
#[path = "../recordings/mod.rs"]
mod recordings;
mod spec;
mod volumes;

use flexvol_testing::run_layer;
use std::{
    env,
    process::{Command, ExitCode},
};

fn main() -> ExitCode {
    let tests = [
        call::TESTS,
        config::TESTS,
        doctor::TESTS,
        documents::TESTS,
        help::TESTS,
        install::TESTS,
        install::kubelet::TESTS,
        install::mounted::TESTS,
        kubelets::TESTS,
        process::TESTS,
        recorded::TESTS,
        spec::TESTS,
        volumes::TESTS,
    ];
    process::double().unwrap_or_else(|| run_layer("cli", &tests))
}

/// The driver's executable: the one built with this test, or `FLEXVOL_EXECUTABLE` if the test runs on
/// another machine.
fn flexvol() -> Command {
    let built = || env!("CARGO_BIN_EXE_flexvol").into();
    Command::new(env::var_os("FLEXVOL_EXECUTABLE").unwrap_or_else(built))
}
