//! `flexvol-sanity`: runs any FlexVolume driver as Kubernetes does, and says what breaks.

mod bench;
mod callout;
mod check;
mod checks;
mod cli;
mod config;
mod discover;
mod guard;
mod journal;
mod redact;
mod report;
mod run;
mod runner;
mod system;
mod verdict;
mod volume;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(code) => code,
        Err(error) => {
            guard::say(&format!("flexvol-sanity: {error:#}"));
            ExitCode::from(2)
        }
    }
}
