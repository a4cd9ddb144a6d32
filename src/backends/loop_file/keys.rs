//! Configuration of a pool of images.

use crate::backends::keys::{
    Keys, absolute, quoted, reserve, reserve_of_a_directory, written_reserve,
};
use flexvol_storage::host::{Allocation, pool::Reserve};
use serde::Deserialize;
use std::path::PathBuf;

/// The keys of a pool of images.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoopKeys {
    /// The directory; `flexvol pool init` made it a pool.
    #[serde(deserialize_with = "absolute")]
    pub path: PathBuf,
    /// Whether blocks are allocated only when they are written.
    #[serde(default)]
    pub thin: bool,
    /// The space to leave free in the pool's file system.
    #[serde(default = "reserve_of_a_directory", deserialize_with = "reserve")]
    pub reserve: Reserve,
}

impl LoopKeys {
    /// Returns whether images are allocated completely from the beginning.
    pub fn allocation(&self) -> Allocation {
        match self.thin {
            true => Allocation::Thin,
            false => Allocation::Full,
        }
    }
}

impl Keys for LoopKeys {
    fn place(&self) -> (&'static str, PathBuf) {
        ("path", self.path.clone())
    }

    fn written(&self) -> Vec<(&'static str, String)> {
        vec![
            ("path", quoted(&self.path)),
            ("thin", self.thin.to_string()),
            ("reserve", written_reserve(self.reserve)),
        ]
    }
}
