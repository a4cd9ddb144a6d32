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

/// The backend of a driver that names none and whose own name is none.
const DEFAULT_BACKEND: &str = "loop";

/// How a configuration begins that says nothing and is meant so; `install` writes it. It is told by this
/// line, so the line never changes.
const DEFAULTS: &str =
    "# Nothing was configured when this driver was installed: the defaults are in force.\n";

/// What an administrator wrote, completed with defaults.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which storage.
    pub backend: &'static Backend,
    /// Where this copy runs.
    pub role: Role,
    /// Kubernetes attaches volumes before it mounts them.
    pub attach: bool,
    /// When volumes grow.
    pub growth: Growth,
    /// Whether a persistent volume's name may identify it.
    pub names: Names,
    /// What is logged at least: `error`, `warn`, `info` or `debug`.
    pub log: Level,
    /// The places volumes are carved from, by name.
    pub pools: Pools,
}

/// The least severe event that is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Failures.
    Error,
    /// And what an administrator should look at.
    Warn,
    /// And every change.
    #[default]
    Info,
    /// And every callout.
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
    /// The configuration of the driver called `name` without a file.
    ///
    /// # Errors
    /// When its backend is not known, or has no default pool.
    pub fn default_for(name: &str) -> Result<Config> {
        Config::parse("", name).map_err(mistaken)
    }

    /// The configuration of an installed driver; the defaults where there is no file. `install` leaves
    /// one, so where it is missing nobody knows how long deleted volumes are kept; see [`is_lost`].
    ///
    /// # Errors
    /// When the file cannot be read or has a mistake, with its line.
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

    /// What lets go of volumes while nobody knows what is configured.
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

    /// Nobody knows how long it kept what was deleted.
    fn lost(mut self) -> Config {
        for pool in self.pools.values_mut() {
            pool.policy.keep_deleted = None;
        }
        self
    }

    /// Reads a configuration file for the driver called `name`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where there is none, otherwise as [`Config::load`].
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

    /// Reads a configuration file's text for the driver called `name`.
    ///
    /// # Errors
    /// For the first mistake in it.
    pub fn parse(text: &str, name: &str) -> std::result::Result<Config, Mistake> {
        read::read(text, name)
    }

    /// The backend of a driver that configures none: its own name, and `flexvol` is `loop`.
    pub fn default_backend(name: &str) -> &str {
        if name == "flexvol" {
            DEFAULT_BACKEND
        } else {
            name
        }
    }

    /// What the whole driver heeds.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        settings.attach = self.attach;
        settings.role = self.role;
        settings.growth = self.growth;
        settings.names = self.names;
        settings
    }
}

/// Whether a configuration was cut before it said anything, by a full disk or a power cut: an editor
/// begins with an empty file, and so does `>`.
pub fn is_lost(text: &str) -> bool {
    says_nothing(text) && !text.starts_with(DEFAULTS)
}

/// Whether a driver had a configuration, which `install` leaves with every one, and has none any more: the
/// file is gone, or says nothing.
pub fn is_lost_of(installed: &Installed) -> bool {
    match fs::read_to_string(installed.configuration()) {
        Ok(text) => is_lost(&text),
        Err(error) => error.kind() == io::ErrorKind::NotFound && installed.init_line().exists(),
    }
}

/// The same configuration as `install` leaves it, which is not taken for one that was lost.
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
        // A mistake is one, and no loss.
        for text in ["growth = \"online\"\n", "[pools]\n", "back", "\0\0\0\0"] {
            assert!(!is_lost(text), "{text:?}");
            assert_eq!(as_meant(text.to_owned()), text);
        }
    }
}
