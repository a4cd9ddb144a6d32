//! A driver's `main` function.

use flexvol_sdk::{Capabilities, Open, Program};
use std::process::ExitCode;

/// Like [`flexvol_sdk::run()`], for drivers whose volumes are on disks: answers even if the kernel waits for a
/// disk for ever.
pub fn run(capabilities: Capabilities, open: Open<'_>) -> ExitCode {
    Program::new(capabilities)
        .watched(flexvol_host::fork)
        .run(open)
}
