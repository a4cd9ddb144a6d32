//! What an administrator tells a pool. Every backend has keys of its own; a key of another backend is a
//! mistake, because whoever wrote it expects something.

use flexvol_storage::{Policy, host::Reserve};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, Error},
};
use std::{any::Any, collections::BTreeMap, fmt, path::PathBuf, rc::Rc};
use toml::de;

/// The places volumes are carved from, by name.
pub type Pools = BTreeMap<String, PoolConfig>;

/// One place volumes are carved from.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// What every backend heeds.
    pub policy: Policy,
    /// What only its own heeds.
    pub keys: Rc<dyn Keys>,
}

/// Those pools that have the keys of one backend.
pub fn of<K: Keys>(pools: &Pools) -> impl Iterator<Item = (&str, &Policy, &K)> {
    pools.iter().filter_map(|(name, pool)| {
        let keys: &dyn Any = &*pool.keys;
        Some((name.as_str(), &pool.policy, keys.downcast_ref()?))
    })
}

/// Reads the keys of one backend.
pub fn read<K: Keys + DeserializeOwned>(
    input: de::Deserializer<'_>,
) -> Result<Rc<dyn Keys>, de::Error> {
    Ok(Rc::new(K::deserialize(input)?))
}

/// What is done with the keys of any backend.
pub trait Keys: Any + fmt::Debug {
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
