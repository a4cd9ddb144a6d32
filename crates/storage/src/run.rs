//! A driver's whole `main`.

use flexvol_sdk::{Capabilities, Open, Program};
use std::process::ExitCode;

/// As [`flexvol_sdk::run()`], for drivers whose volumes are on disks: answers also where the kernel
/// waits for ever for one of them.
pub fn run(capabilities: Capabilities, open: Open<'_>) -> ExitCode {
    Program::new(capabilities)
        .watched(flexvol_host::fork)
        .run(open)
}
