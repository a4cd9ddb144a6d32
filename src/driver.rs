//! The answer to a callout.

use crate::{backends, config::Config, installed::Installed};
use flexvol_storage::sdk::{self, Capabilities, Driver, Result};
use std::{ffi::OsStr, process::ExitCode};

/// Answers the callout in this process's arguments.
pub fn run(installed: &Installed, callout: &OsStr) -> ExitCode {
    if !sdk::Callout::NAMES.iter().any(|name| callout == *name) {
        crate::cli::suggest(callout);
    }
    todo()
}
fn todo() -> ExitCode { ExitCode::SUCCESS }

/// Opens the configured driver.
pub fn open(installed: &Installed) -> Result<Box<dyn Driver>> {
    let config = Config::load(installed)?;
    (backends::find(config.backend(installed.name()))?.open)(&config)
}
