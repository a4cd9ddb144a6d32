//! What an administrator tells a pool. Every backend has keys of its own; a key of another backend is a
//! mistake, because whoever wrote it expects something.

use flexvol_storage::host::Reserve;
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use std::path::PathBuf;

/// What is done with the keys of any backend.
pub trait Keys {
    /// The key that says where the pool is, and where that is. Two pools in one place would each keep the
    /// volumes of both by its own rules.
    fn place(&self) -> (&'static str, PathBuf);

    /// Every key that is in force, and its value as TOML has it.
    fn written(&self) -> Vec<(&'static str, String)>;
}

/// JSON's strings are TOML's basic strings: the same quotes, and no escape that TOML lacks.
pub fn quoted(value: impl Serialize) -> String {
    serde_json::to_string(&value).unwrap_or_default()
}

pub fn absolute<'de, D: Deserializer<'de>>(input: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(input)?;
    match path.is_absolute() {
        true => Ok(path),
        false => Err(D::Error::custom("path must be absolute")),
    }
}

/// A percentage of the place, or a size.
pub fn reserve<'de, D: Deserializer<'de>>(input: D) -> Result<Reserve, D::Error> {
    let text = String::deserialize(input)?;
    match text.strip_suffix('%').map(str::parse::<u8>) {
        Some(Ok(percent)) if percent < 100 => Ok(Reserve::Percent(percent)),
        Some(_) => Err(D::Error::custom(format!("{text:?} is not 0% to 99%"))),
        None => text.parse().map(Reserve::Bytes).map_err(D::Error::custom),
    }
}

/// Kubelet evicts pods when less than 10 % of the node's file system is free.
pub fn reserve_of_a_directory() -> Reserve {
    Reserve::Percent(15)
}

pub fn written_reserve(reserve: Reserve) -> String {
    quoted(match reserve {
        Reserve::Percent(percent) => format!("{percent}%"),
        Reserve::Bytes(bytes) => bytes.to_string(),
    })
}
