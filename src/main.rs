//! The driver: which of its two callers is it, and who answers?
//!
//! Kubelet and the controller manager name a callout and read one JSON line. People name a verb
//! and read text. Nothing that serves people is touched on the way of a callout.
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

// What else an architecture's libraries may ask of it is not known elsewhere.
#[cfg(all(target_env = "gnu", target_arch = "x86_64", panic = "abort", not(test)))]
flexvol_storage::host::no_unwinding!();

// Other C libraries tell std its arguments through its own start alone.
#[cfg(not(all(target_env = "gnu", not(test))))]
fn main() -> ExitCode {
    run()
}

fn run() -> ExitCode {
    let mut arguments = env::args_os();
    let installed = Installed::here(arguments.next().as_deref());
    match arguments.next() {
        Some(verb) if !cli::is_verb(&verb) => driver::run(&installed, &verb),
        // Somebody's program, which reads JSON, if a person does not look.
        None if installed.is_driver() && !io::stdout().is_terminal() => {
            driver::run(&installed, OsStr::new(""))
        }
        _ => cli::run(&installed),
    }
}
