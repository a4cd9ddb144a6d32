//! What an administrator tells a pool of images.

use crate::backends::keys::{
    Keys, absolute, quoted, reserve, reserve_of_a_directory, written_reserve,
};
use flexvol_storage::host::{Allocation, pool::Reserve};
use serde::Deserialize;
use std::path::PathBuf;

/// What a pool of images is told.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoopKeys {
    /// The directory, made a pool by `flexvol pool init`.
    #[serde(deserialize_with = "absolute")]
    pub path: PathBuf,
    /// Allocate blocks when they are written and not before.
    #[serde(default)]
    pub thin: bool,
    /// What is left free in the pool's file system.
    #[serde(default = "reserve_of_a_directory", deserialize_with = "reserve")]
    pub reserve: Reserve,
}

impl LoopKeys {
    /// Whether images have their blocks from the beginning.
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
