//! The driver's configuration: a TOML file beside the executable.

mod effective;
mod keep;
mod read;

pub use effective::effective;
pub use keep::Keep;
pub use read::Mistake;

use crate::{
    backends::{BACKENDS, Backend, Pools},
    installed::Installed,
};
use flexvol_storage::{
    Growth, Names, Role, Settings,
    sdk::{Error, ErrorKind, Result},
};
use log::LevelFilter;
use serde::{Deserialize, Serialize};
use std::{fmt, fs, io, path::Path};

/// The backend of a driver that configures none and is not named after one.
const DEFAULT_BACKEND: &str = "loop";

/// First line of an empty configuration that is intended; `install` writes it. It tells such a file from a lost
/// one, so it must never change.
const DEFAULTS: &str =
    "# Nothing was configured when this driver was installed: the defaults are in force.\n";

/// The administrator's configuration, completed with defaults.
#[derive(Clone, Debug)]
pub struct Config {
    /// The storage backend.
    pub backend: &'static Backend,
    /// Where this copy runs.
    pub role: Role,
    /// Whether Kubernetes attaches volumes before it mounts them.
    pub attach: bool,
    /// When volumes grow.
    pub growth: Growth,
    /// Whether a persistent volume's name may identify it.
    pub names: Names,
    /// The least severe events that are logged: `error`, `warn`, `info` or `debug`.
    pub log: Level,
    /// The pools, by name.
    pub pools: Pools,
}

/// The least severe event that is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Only failures.
    Error,
    /// Also what needs an administrator's attention.
    Warn,
    /// Also every change.
    #[default]
    Info,
    /// Also every callout.
    Debug,
}

impl From<Level> for LevelFilter {
    fn from(level: Level) -> Self {
        match level {
            Level::Error => LevelFilter::Error,
            Level::Warn => LevelFilter::Warn,
            Level::Info => LevelFilter::Info,
            Level::Debug => LevelFilter::Debug,
        }
    }
}

impl Config {
    /// Returns the configuration of the driver called `name` without a file.
    ///
    /// # Errors
    /// When its backend is unknown, or has no default pool.
    pub fn default_for(name: &str) -> Result<Config> {
        Config::parse("", name).map_err(mistaken)
    }

    /// Loads the configuration of an installed driver; the defaults if there is no file. `install` always leaves a
    /// file, so a missing one means that the retention time of deleted volumes is unknown; see [`is_lost`].
    ///
    /// # Errors
    /// When the file cannot be read, or has a mistake, which is given with its line.
    pub fn load(installed: &Installed) -> Result<Config> {
        match Config::read(&installed.configuration(), installed.name()) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let config = Config::default_for(installed.name())?;
                Ok(if is_lost_of(installed) {
                    config.lost()
                } else {
                    config
                })
            }
            config => config,
        }
    }

    /// Returns a configuration that can only unmount and detach, for use while the real one is unusable.
    pub fn without_pools() -> Config {
        Config {
            backend: &BACKENDS[0],
            role: Role::default(),
            attach: false,
            growth: Growth::default(),
            names: Names::default(),
            log: Level::default(),
            pools: Pools::new(),
        }
    }

    /// Makes the retention time of all pools unknown.
    fn lost(mut self) -> Config {
        for pool in self.pools.values_mut() {
            pool.policy.keep_deleted = None;
        }
        self
    }

    /// Reads a configuration file for the driver called `name`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is none, otherwise as [`Config::load`].
    pub fn read(path: &Path, name: &str) -> Result<Config> {
        match fs::read_to_string(path) {
            Ok(text) => match Config::parse(&text, name) {
                Ok(config) if is_lost(&text) => Ok(config.lost()),
                config => {
                    config.map_err(|mistake| mistaken(mistake).because(path.display().to_string()))
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::new(
                ErrorKind::NotFound,
                "there is no such configuration",
            )
            .because(path.display().to_string())),
            Err(error) => Err(mistaken(error)),
        }
    }

    /// Parses the text of a configuration file for the driver called `name`.
    ///
    /// # Errors
    /// The first mistake in it.
    pub fn parse(text: &str, name: &str) -> std::result::Result<Config, Mistake> {
        read::read(text, name)
    }

    /// Returns the backend of a driver that configures none: the driver's own name, or `loop` for `flexvol`.
    pub fn default_backend(name: &str) -> &str {
        if name == "flexvol" {
            DEFAULT_BACKEND
        } else {
            name
        }
    }

    /// Returns the settings of the whole driver.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        settings.attach = self.attach;
        settings.role = self.role;
        settings.growth = self.growth;
        settings.names = self.names;
        settings
    }
}

/// Whether a configuration sets nothing by accident, after a full disk or a power failure: editors and `>` first
/// truncate the file.
pub fn is_lost(text: &str) -> bool {
    says_nothing(text) && !text.starts_with(DEFAULTS)
}

/// Whether a driver's configuration was lost: `install` always leaves a file, and now it is missing or empty.
pub fn is_lost_of(installed: &Installed) -> bool {
    match fs::read_to_string(installed.configuration()) {
        Ok(text) => is_lost(&text),
        Err(error) => error.kind() == io::ErrorKind::NotFound && installed.init_line().exists(),
    }
}

/// Returns the configuration as `install` stores it, so that an empty one does not count as lost.
pub fn as_meant(text: String) -> String {
    match is_lost(&text) {
        true => format!("{DEFAULTS}{}", text.trim_start_matches('\u{feff}')),
        false => text,
    }
}

fn says_nothing(text: &str) -> bool {
    toml::from_str(text).is_ok_and(|table: toml::Table| table.is_empty())
}

fn mistaken(what: impl fmt::Display) -> Error {
    Error::new(
        ErrorKind::Configuration,
        format!("the driver's configuration is wrong: {what}; run `flexvol config` on the node"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_that_says_nothing_is_lost_unless_install_wrote_it() {
        for text in [
            "",
            " \n\t\n",
            "# Where the volumes of",
            "\u{feff}# \u{e9}\r\n",
        ] {
            assert!(is_lost(text), "{text:?}");
            let meant = as_meant(text.to_owned());
            assert!(meant.ends_with(text.trim_start_matches('\u{feff}')));
            assert!(says_nothing(&meant) && !is_lost(&meant), "{meant:?}");
            assert_eq!(as_meant(meant.clone()), meant);
        }
        // A configuration with a mistake is not a lost one.
        for text in ["growth = \"online\"\n", "[pools]\n", "back", "\0\0\0\0"] {
            assert!(!is_lost(text), "{text:?}");
            assert_eq!(as_meant(text.to_owned()), text);
        }
    }
}
