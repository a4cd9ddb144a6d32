//! The driver's configuration: a TOML file beside the executable.

mod effective;
mod mistakes;

pub use effective::effective;
pub use mistakes::{Mistake, mistakes};

use crate::installed::Installed;
use flexvol_storage::{
    Growth, Names, Namespaces, Policy, Role, Settings,
    host::Reserve,
    sdk::{Bytes, Error, ErrorKind, Filesystem, Result},
};
use log::LevelFilter;
use serde::{Deserialize, Deserializer, Serialize, de};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// The backend of a driver that names none and whose own name is none.
const DEFAULT_BACKEND: &str = "loop";
/// The pool of a driver that configures none.
const DEFAULT_POOL: &str = "/var/lib/flexvol/pools/default";

/// What an administrator wrote, completed with defaults.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The backend's name; without it, the executable's own name is taken.
    pub backend: Option<String>,
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
    pub pools: BTreeMap<String, PoolConfig>,
}

/// One place volumes are carved from.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    /// The directory, made a pool by `flexvol pool init`.
    pub path: PathBuf,
    /// Allocate blocks when they are written and not before.
    #[serde(default)]
    pub thin: bool,
    /// What is left free in the pool's file system: `15%` or a quantity.
    #[serde(default = "default_reserve", deserialize_with = "reserve")]
    pub reserve: Reserve,
    /// Which pods may mount the pool's volumes.
    #[serde(default)]
    pub namespaces: Namespaces,
    /// The file system of a volume that asks for none.
    #[serde(default = "default_filesystem")]
    pub filesystem: Filesystem,
    /// No volume gets larger than this.
    #[serde(default)]
    pub largest: Option<Bytes>,
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

fn default_filesystem() -> Filesystem {
    Policy::default().filesystem
}

/// Kubelet evicts pods when less than 10 % of the node's file system is free.
fn default_reserve() -> Reserve {
    Reserve::Percent(15)
}

fn reserve<'de, D: Deserializer<'de>>(input: D) -> Result<Reserve, D::Error> {
    let text = String::deserialize(input)?;
    let percent = text.strip_suffix('%').map(str::parse::<u8>);
    match percent {
        Some(Ok(percent)) if percent < 100 => Ok(Reserve::Percent(percent)),
        Some(_) => Err(de::Error::custom(format!("{text:?} is not 0% to 99%"))),
        None => text.parse().map(Reserve::Bytes).map_err(de::Error::custom),
    }
}

impl Default for Config {
    fn default() -> Self {
        let pool = PoolConfig {
            path: DEFAULT_POOL.into(),
            thin: false,
            reserve: default_reserve(),
            namespaces: Namespaces::default(),
            filesystem: default_filesystem(),
            largest: None,
        };
        Config {
            backend: None,
            role: Role::default(),
            attach: false,
            growth: Growth::default(),
            names: Names::default(),
            log: Level::default(),
            pools: BTreeMap::from([("default".to_owned(), pool)]),
        }
    }
}

impl Config {
    /// The configuration of an installed driver; the defaults where there is no file.
    ///
    /// # Errors
    /// When the file cannot be read or has a mistake, with its line.
    pub fn load(installed: &Installed) -> Result<Config> {
        match Config::read(&installed.configuration()) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Config::default()),
            config => config,
        }
    }

    /// Reads a configuration file.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where there is none, otherwise as [`Config::load`].
    pub fn read(path: &Path) -> Result<Config> {
        match fs::read_to_string(path) {
            Ok(text) => {
                Config::parse(&text).map_err(|error| error.because(path.display().to_string()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::new(
                ErrorKind::NotFound,
                "there is no such configuration",
            )
            .because(path.display().to_string())),
            Err(error) => Err(mistaken(&error.to_string())),
        }
    }

    /// Reads a configuration file's text.
    ///
    /// # Errors
    /// For every mistake in it.
    pub fn parse(text: &str) -> Result<Config> {
        let config: Config = toml::from_str(text).map_err(|error| {
            let line = mistakes::line(text, error.span().map_or(0, |span| span.start));
            mistaken(&format!("line {line}: {}", error.message()))
        })?;
        let mut pools = config.pools.iter();
        match pools.find_map(|(name, pool)| mistake_of_pool(name, &pool.path)) {
            Some(mistake) => Err(mistaken(&mistake)),
            None => Ok(config),
        }
    }

    /// The backend of the driver called `name`.
    pub fn backend<'a>(&'a self, name: &'a str) -> &'a str {
        self.backend
            .as_deref()
            .unwrap_or(Config::default_backend(name))
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
        Settings {
            attach: self.attach,
            role: self.role,
            growth: self.growth,
            names: self.names,
        }
    }
}

impl PoolConfig {
    /// What one pool heeds.
    pub fn policy(&self) -> Policy {
        Policy {
            namespaces: self.namespaces,
            filesystem: self.filesystem,
            largest: self.largest,
        }
    }
}

fn mistake_of_pool(name: &str, path: &Path) -> Option<String> {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    if name.is_empty() || name.len() > 63 || !name.bytes().all(plain) {
        return Some(format!(
            "pool {name:?}: a pool's name is 1 to 63 of a-z, 0-9 and '-'"
        ));
    }
    let relative = !path.is_absolute();
    relative.then(|| format!("pool {name:?}: path must be absolute"))
}

fn mistaken(what: &str) -> Error {
    Error::new(
        ErrorKind::Configuration,
        format!("the driver's configuration is wrong: {what}; run `flexvol config` on the node"),
    )
}
