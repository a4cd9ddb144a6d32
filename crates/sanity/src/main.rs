//! `flexvol-sanity`: runs any FlexVolume driver as Kubernetes does, and says what breaks.

mod bench;
mod call;
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
mod json;
mod kubelet;
mod leftovers;
mod lifecycle;
mod own_mounts;
mod process;
mod reply;
mod report;
mod run;
mod shield;
mod subject;
mod tour;
mod victim;
mod volume;
mod volumes;
mod world;

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
