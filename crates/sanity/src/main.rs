//! `flexvol-sanity`: runs any FlexVolume driver as Kubernetes does, and says what breaks.

mod bench;
mod callout;
mod check;
mod checks;
mod cli;
mod config;
mod data;
mod discover;
mod environment;
mod evidence;
mod first;
mod guard;
mod hanging;
mod image;
mod journal;
mod kubelet;
mod lifecycle;
mod redact;
mod report;
mod run;
mod shield;
mod subject;
mod system;
mod tour;
mod victim;
mod volume;
mod volumes;

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
