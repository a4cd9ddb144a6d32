//! What a power cut leaves: a volume's life in a virtual machine whose disk is recorded write by
//! write, and that disk as it may be after each of them, given to the driver of this machine. Needs
//! root and qemu, but no KVM.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod check;
mod crash;
mod here;
mod machine;
mod node;
mod reset;
mod story;

use flexvol_testing::{VIRTUAL_MACHINE as NEEDS, cases, run_cases};
use std::{path::PathBuf, process::ExitCode, sync::Mutex};

fn main() -> ExitCode {
    run_cases("power", cases(&[crash::TESTS, reset::TESTS]), 2)
}

/// Of tests that mount on this machine one runs at a time: what each leaves is looked for. Beside it are
/// those whose volumes are in a virtual one.
static HERE: Mutex<()> = Mutex::new(());

/// The driver's executable.
fn executable() -> PathBuf {
    flexvol_testing::executable(env!("CARGO_BIN_EXE_flexvol"))
}
