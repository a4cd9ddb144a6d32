//! What the driver and its crates do with real loop devices, mounts and file systems. Needs root.

use flexvol_testing::run_layer;
use std::process::ExitCode;

fn main() -> ExitCode {
    run_layer("node", &[])
}
