//! Configuration of a pool of directories.

use crate::backends::keys::{
    Keys, absolute, quoted, reserve, reserve_of_a_directory, written_reserve,
};
use flexvol_storage::host::{Reserve, fs::quota::Projects, pool::Rules};
use serde::{Deserialize, Deserializer, de::Error as _};
use std::path::PathBuf;

/// The keys of a pool of directories.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirKeys {
    /// The directory; `flexvol pool init` made it a pool.
    #[serde(deserialize_with = "absolute")]
    pub path: PathBuf,
    #[serde(default = "reserve_of_a_directory", deserialize_with = "reserve")]
    reserve: Reserve,
    #[serde(default)]
    overcommit: bool,
    #[serde(default, deserialize_with = "projects")]
    projects: Projects,
}

fn projects<'de, D: Deserializer<'de>>(input: D) -> Result<Projects, D::Error> {
    let text = String::deserialize(input)?;
    text.parse().map_err(D::Error::custom)
}

impl DirKeys {
    /// Returns the reserve, whether overcommit is allowed, and the range of projects.
    pub fn rules(&self) -> Rules {
        Rules {
            reserve: self.reserve,
            overcommit: self.overcommit,
            projects: self.projects,
        }
    }
}

impl Keys for DirKeys {
    fn place(&self) -> (&'static str, PathBuf) {
        ("path", self.path.clone())
    }

    fn written(&self) -> Vec<(&'static str, String)> {
        vec![
            ("path", quoted(&self.path)),
            ("reserve", written_reserve(self.reserve)),
            ("overcommit", self.overcommit.to_string()),
            ("projects", quoted(self.projects.to_string())),
        ]
    }
}
