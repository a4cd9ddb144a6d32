//! Callouts: runs the driver that is configured.

use crate::{backends, cli, config::Config, installed::Installed};
use flexvol_storage::host::fork;
use flexvol_storage::sdk::{Callout, Capabilities, Driver, Program, Result};
use std::{ffi::OsStr, process::ExitCode};

/// Answers the callout in this process's arguments.
///
/// `init` answers what was verified when the driver was installed, or the backend's default if there is no such
/// line. So a mistake in the configuration does not make kubelet drop the driver. `init` parses and opens nothing.
pub fn run(installed: &Installed, callout: &OsStr) -> ExitCode {
    if !callout.is_empty() && !Callout::NAMES.iter().any(|name| callout == *name) {
        cli::suggest(callout);
    }
    Program::new(default_capabilities(installed.name()))
        .init_line(installed.init_line())
        .configured_by(installed.configuration())
        .watched(fork)
        .run(&|| open(installed, callout))
}

/// Callouts that end a pod's use of a volume and must work with any configuration. None of them needs a pool.
const TEARDOWN_CALLOUTS: [&str; 3] = ["unmount", "unmountdevice", "detach"];

/// Opens the configured driver. If its configuration has a mistake, opens one without pools, which can still
/// unmount and detach.
fn open(installed: &Installed, callout: &OsStr) -> Result<Box<dyn Driver>> {
    let config = match Config::load(installed) {
        Err(mistake) if TEARDOWN_CALLOUTS.iter().any(|name| callout == *name) => {
            log::error!("{}; without it volumes are only let go", mistake.report());
            Config::without_pools()
        }
        loaded => loaded?,
    };
    log::set_max_level(config.log.into());
    let driver = config.backend.driver(&config.pools, &config.settings());
    Ok(Box::new(driver))
}

fn default_capabilities(name: &str) -> Capabilities {
    let backend = Config::default_backend(name);
    let capabilities = backends::find(backend)
        .map_or(backends::BACKENDS[0].capabilities, |backend| {
            backend.capabilities
        });
    capabilities(false)
}
