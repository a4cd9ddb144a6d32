//! `flexvol-sanity` on known drivers: ours pass, and the faults of one in the style of classic scripts are
//! found.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod applicable;
mod classic;
mod found;
mod good;
mod tester;

use flexvol_testing::run_layer;
use std::{env, path::PathBuf, process::ExitCode};

fn main() -> ExitCode {
    run_layer("sanity", &[good::TESTS, classic::TESTS])
}

/// The driver's executable: the one built with this test, or `FLEXVOL_EXECUTABLE` if the test runs on
/// another machine. The other executables are beside it.
fn executable() -> PathBuf {
    env::var_os("FLEXVOL_EXECUTABLE").map_or_else(
        || PathBuf::from(env!("CARGO_BIN_EXE_flexvol")),
        PathBuf::from,
    )
}
