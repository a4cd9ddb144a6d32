//! The driver's executable, which serves two kinds of callers.
//!
//! Kubelet and the controller manager name a callout and read one JSON line. Users name a verb and read text. A
//! callout runs no code that serves users.
#![forbid(unsafe_code)]
#![cfg_attr(all(target_env = "gnu", not(test)), no_main)]

mod backends;
mod check;
mod cli;
mod config;
mod driver;
mod installed;
mod plugin;
mod processes;
mod size;

use installed::Installed;
use std::{
    env,
    ffi::OsStr,
    io::{self, IsTerminal},
    process::ExitCode,
};

#[cfg(all(target_env = "gnu", not(test)))]
flexvol_storage::host::main!(run);

// Only for the architecture on which it is known which functions the libraries need.
#[cfg(all(target_env = "gnu", target_arch = "x86_64", panic = "abort", not(test)))]
flexvol_storage::host::no_unwinding!();

// On other C libraries std gets its arguments only through its own entry point.
#[cfg(not(all(target_env = "gnu", not(test))))]
fn main() -> ExitCode {
    run()
}

fn run() -> ExitCode {
    let mut arguments = env::args_os();
    let installed = Installed::here(arguments.next().as_deref());
    match arguments.next() {
        Some(verb) if !cli::is_verb(&verb) => driver::run(&installed, &verb),
        // Standard output is not a terminal, so the caller is a program that expects JSON.
        None if installed.is_driver() && !io::stdout().is_terminal() => {
            driver::run(&installed, OsStr::new(""))
        }
        _ => cli::run(&installed),
    }
}
