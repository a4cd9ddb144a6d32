//! Power failures: a volume's life runs in a virtual machine whose disk is recorded write by write. The
//! driver of this machine then gets that disk as it may be after each write. Needs root and qemu, but no
//! KVM.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod check;
mod crash;
mod cut;
mod here;
mod machine;
mod node;
mod reset;
mod story;
mod superblock;

use flexvol_testing::{VIRTUAL_MACHINE as NEEDS, cases, run_cases};
use std::{path::PathBuf, process::ExitCode, sync::Mutex};

fn main() -> ExitCode {
    run_cases("power", cases(&[crash::TESTS, reset::TESTS]), 2)
}

/// Serializes the tests that mount on this machine, because each checks what it left. Those with volumes in a
/// virtual machine run beside them.
static HERE: Mutex<()> = Mutex::new(());

/// The driver's executable.
fn executable() -> PathBuf {
    flexvol_testing::executable(env!("CARGO_BIN_EXE_flexvol"))
}
