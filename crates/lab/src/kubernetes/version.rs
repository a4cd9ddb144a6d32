//! Releases of Kubernetes, and what differs between them.

use anyhow::{Context, Result, bail};
use std::{fmt, str::FromStr};

/// A release, such as 1.37.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    minor: u32,
    patch: u32,
}

/// Tested releases, newest first: the newest, the one with which the recordings began, and between them one for each
/// change of the callers' behaviour.
pub const VERSIONS: [Version; 5] = [
    Version::new(37, 1),
    Version::new(32, 2),
    Version::new(28, 15),
    Version::new(24, 17),
    Version::new(20, 2),
];

impl Version {
    const fn new(minor: u32, patch: u32) -> Self {
        Version { minor, patch }
    }

    /// Returns the newest tested release.
    #[must_use]
    pub const fn newest() -> Self {
        VERSIONS[0]
    }

    /// Returns the minor version.
    #[must_use]
    pub const fn minor(self) -> u32 {
        self.minor
    }

    /// Returns the version of Kubernetes' staging modules, which are published separately.
    #[must_use]
    pub fn of_published_modules(self) -> String {
        format!("v0.{}.{}", self.minor, self.patch)
    }

    /// Whether the release needs an old Go: its dependencies do not build with newer ones.
    #[must_use]
    pub const fn needs_old_go(self) -> bool {
        self.minor < 26
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v1.{}.{}", self.minor, self.patch)
    }
}

impl FromStr for Version {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let numbers = text.strip_prefix('v').unwrap_or(text);
        let parts: Vec<u32> = numbers
            .split('.')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .with_context(|| format!("{text:?} is no version such as 1.37.1"))?;
        match parts[..] {
            [1, minor, patch] => Ok(Version { minor, patch }),
            _ => bail!("{text:?} is no version such as 1.37.1"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_with_and_without_v() {
        for text in ["v1.20.2", "1.20.2"] {
            let version: Version = text.parse().unwrap();
            assert_eq!(version.to_string(), "v1.20.2");
            assert_eq!(version.of_published_modules(), "v0.20.2");
        }
        for text in ["", "1.20", "2.1.0", "1.x.2", "latest"] {
            assert!(text.parse::<Version>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_newest_is_the_first() {
        assert_eq!(VERSIONS.iter().max(), Some(&Version::newest()));
    }
}
