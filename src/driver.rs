//! The answer to a callout.

use crate::{backends, cli, config::Config, installed::Installed};
use flexvol_storage::host::fork;
use flexvol_storage::sdk::{Callout, Capabilities, Driver, Program, Result};
use std::{ffi::OsStr, process::ExitCode};

/// Answers the callout in this process's arguments.
///
/// What `init` says was verified when the driver was installed; where there is no such line, it
/// is the backend's own default, so that a mistake in the configuration does not take the driver
/// away from kubelet. Nothing is parsed and nothing opened for it.
pub fn run(installed: &Installed, callout: &OsStr) -> ExitCode {
    if !callout.is_empty() && !Callout::NAMES.iter().any(|name| callout == *name) {
        cli::suggest(callout);
    }
    Program::new(default_capabilities(installed.name()))
        .init_line(installed.init_line())
        .watched(fork)
        .run(&|| open(installed))
}

/// Opens the configured driver.
pub fn open(installed: &Installed) -> Result<Box<dyn Driver>> {
    let config = Config::load(installed)?;
    log::set_max_level(config.log.into());
    Ok(Box::new(backends::open(&config)))
}

fn default_capabilities(name: &str) -> Capabilities {
    let backend = Config::default_backend(name);
    let capabilities = backends::find(backend)
        .map_or(backends::BACKENDS[0].capabilities, |backend| {
            backend.capabilities
        });
    capabilities(false)
}
