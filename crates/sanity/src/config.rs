//! The configuration of a run: the command line takes precedence over `sanity.toml`.

use crate::callout::argument::Options;
use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use std::{
    fmt::{self, Display, Formatter},
    fs,
    path::{Path, PathBuf},
};

/// `sanity.toml`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The driver's executable, where it is installed.
    pub driver: Option<PathBuf>,
    /// `vendor/driver`. By default taken from the executable's directory, `vendor~driver`.
    pub name: Option<String>,
    /// Options of an existing volume, or of every volume if a value has `{image}` or `{device}`.
    pub options: Options,
    /// Content of the volume's secret.
    pub secrets: Options,
    /// The file system to request; empty for the driver's default.
    pub fs_type: String,
    /// Size of new volumes: bytes, or a number with the suffix `Mi` or `Gi`.
    pub size: Option<String>,
    /// Seconds within which every callout must answer.
    pub deadline: Option<u64>,
    /// The name of this node, for `attach`.
    pub node: Option<String>,
    /// The name of another node that the backend knows.
    pub other_node: Option<String>,
    /// Files and directories where the driver writes its log and state.
    pub writes: Vec<PathBuf>,
    pub volume: Hooks,
}

/// How volumes are made and removed.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hooks {
    /// A command that makes the volume `$SANITY_NAME` of `$SANITY_BYTES` bytes and prints its options.
    pub create: Vec<String>,
    /// A command that removes the volume `$SANITY_NAME`, whose options are `$SANITY_OPTIONS`.
    pub remove: Vec<String>,
    /// Parameters for `provision` besides name and size, as from a storage class.
    pub parameters: Options,
    /// The file or device with the volume's bytes. `{KEY}` stands for the volume's option KEY,
    /// `{KEY:sha256:DIGITS}` for the first digits of its SHA-256, and `{name}` for the volume's name.
    pub content: Option<String>,
    /// The kind of storage.
    pub kind: Kind,
    /// A command that makes reading the volume's content (`$SANITY_CONTENT`) fail.
    pub break_reads: Vec<String>,
    /// A command that permanently kills the server of a mounted volume.
    pub kill_server: Vec<String>,
    /// Volumes can only be read, however they are mounted.
    pub read_only: bool,
}

/// The kind of storage of a volume, as the driver's author configures it.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A block device of its own, with a file system on it.
    #[default]
    Block,
    /// A directory of a shared file system, which is never formatted for a volume.
    Directory,
    /// Memory, secrets and the like: made by the mount, and gone with the unmount.
    Ephemeral,
}

/// The word of the configuration.
impl Display for Kind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Block => "block",
            Kind::Directory => "directory",
            Kind::Ephemeral => "ephemeral",
        })
    }
}

impl Config {
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("understand {}", path.display()))
    }

    /// # Errors
    /// The line number, without the line's text, which may contain a secret.
    fn parse(text: &str) -> Result<Self> {
        let line = |error: &toml::de::Error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            before.map_or(0, |before| before.matches('\n').count()) + 1
        };
        let mut table: toml::Table = text
            .parse()
            .map_err(|error| anyhow!("line {} is no TOML", line(&error)))?;
        let secrets = table.remove("secrets");
        let config: Config = table.try_into()?;
        let secrets = match secrets {
            None => Options::new(),
            Some(toml::Value::Table(secrets)) => secrets
                .into_iter()
                .map(|(key, value)| match value {
                    toml::Value::String(value) => Ok((key, value)),
                    _ => bail!("secret {key} is no string"),
                })
                .collect::<Result<_>>()?,
            Some(_) => bail!("secrets is no table"),
        };
        Ok(Config { secrets, ..config })
    }
}

/// Parses a flat JSON object of strings, given as text or as a file.
pub fn options(argument: &str) -> Result<Options> {
    let text = if argument.trim_start().starts_with('{') {
        argument.to_owned()
    } else {
        fs::read_to_string(argument).with_context(|| format!("read {argument}"))?
    };
    serde_json::from_str(&text)
        .with_context(|| "understand the options: one JSON object whose values are strings")
}

/// Parses secrets like [`options`].
///
/// # Errors
/// Messages contain nothing of what was given.
pub fn secrets(argument: &str) -> Result<Options> {
    let text = if argument.trim_start().starts_with('{') {
        argument.to_owned()
    } else {
        fs::read_to_string(argument).context("read the file of secrets that --secrets names")?
    };
    serde_json::from_str(&text)
        .map_err(|error| anyhow!("line {}, column {}", error.line(), error.column()))
        .context("understand the secrets: one JSON object whose values are strings")
}

/// Parses `320Mi`, `1Gi` or bytes.
pub fn bytes(text: &str) -> Result<u64> {
    let (digits, shift) = match text.strip_suffix("Mi") {
        Some(digits) => (digits, 20),
        None => text
            .strip_suffix("Gi")
            .map_or((text, 0), |digits| (digits, 30)),
    };
    match digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
    {
        Some(bytes) if bytes > 0 => Ok(bytes),
        _ => bail!("size {text:?} is no number of bytes, Mi or Gi"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes() {
        assert_eq!(bytes("1Gi").unwrap(), 1 << 30);
        assert_eq!(bytes("320Mi").unwrap(), 320 << 20);
        assert_eq!(bytes("7").unwrap(), 7);
        assert!(bytes("0").is_err());
        assert!(bytes("1G").is_err());
    }

    #[test]
    fn mistakes_in_the_configuration_are_named() {
        let error = Config::parse("drive = 'x'").unwrap_err();
        assert!(error.to_string().contains("drive"), "{error}");
        Config::parse("[volume]\nkind = 'directory'\ncreate = ['x']").unwrap();
        let error = Config::parse("[volume]\nkind = 'file'").unwrap_err();
        assert!(error.to_string().contains("file"), "{error}");
    }

    #[test]
    fn mistakes_in_secrets_are_told_without_them() {
        for (argument, place) in [
            ("{\"password\": 4711}", "line 1, column 17"),
            ("{\n\"password\": \"4711\" \"4711\"}", "line 2"),
            ("[\"4711\"]", "the file of secrets"),
            ("/4711/nowhere", "the file of secrets"),
        ] {
            let error = format!("{:#}", secrets(argument).unwrap_err());
            assert!(
                error.contains("secrets") && error.contains(place),
                "{error}"
            );
            assert!(!error.contains("4711"), "{error}");
        }
        for (text, place) in [
            ("[secrets]\npassword = 4711", "secret password is no string"),
            ("[secrets]\npassword = '4711", "line 2 is no TOML"),
            ("secrets = '4711'", "secrets is no table"),
        ] {
            let error = format!("{:#}", Config::parse(text).unwrap_err());
            assert!(error.contains(place), "{error}");
            assert!(!error.contains("4711"), "{error}");
        }
        let config = Config::parse("[secrets]\npassword = '4711'").unwrap();
        assert_eq!(config.secrets["password"], "4711");
    }
}
