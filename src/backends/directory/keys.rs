//! What an administrator tells a pool of directories.

use crate::backends::keys::{
    Keys, absolute, quoted, reserve, reserve_of_a_directory, written_reserve,
};
use flexvol_storage::host::{Reserve, fs::quota::Projects, pool::Rules};
use serde::{Deserialize, Deserializer, de::Error as _};
use std::path::PathBuf;

/// What a pool of directories is told.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirKeys {
    /// The directory, made a pool by `flexvol pool init`.
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
    /// What is left free, what may be promised, and which projects volumes get.
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
