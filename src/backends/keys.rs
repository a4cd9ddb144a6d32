//! Configuration of pools. Each backend has keys of its own; keys of another backend are refused, because the
//! author expects an effect of them.

use flexvol_storage::{Policy, host::Reserve};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, Error},
};
use std::{any::Any, collections::BTreeMap, fmt, path::PathBuf, rc::Rc};
use toml::de;

/// The pools of a driver, by name.
pub type Pools = BTreeMap<String, PoolConfig>;

/// The configuration of one pool.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// The keys that all backends share.
    pub policy: Policy,
    /// The keys of the pool's own backend.
    pub keys: Rc<dyn Keys>,
}

/// Iterates over the pools that have the keys of one backend.
pub fn of<K: Keys>(pools: &Pools) -> impl Iterator<Item = (&str, &Policy, &K)> {
    pools.iter().filter_map(|(name, pool)| {
        let keys: &dyn Any = &*pool.keys;
        Some((name.as_str(), &pool.policy, keys.downcast_ref()?))
    })
}

/// Deserializes the keys of one backend.
pub fn read<K: Keys + DeserializeOwned>(
    input: de::Deserializer<'_>,
) -> Result<Rc<dyn Keys>, de::Error> {
    Ok(Rc::new(K::deserialize(input)?))
}

/// Access to the keys of any backend.
pub trait Keys: Any + fmt::Debug {
    /// Returns the key that says where the pool is, and its value. Two pools in one place would apply different
    /// rules to the same volumes.
    fn place(&self) -> (&'static str, PathBuf);

    /// Returns every key that is in force, with its value in TOML.
    fn written(&self) -> Vec<(&'static str, String)>;
}

/// Quotes a string as JSON, which is a valid TOML basic string: TOML has the same quotes and all escapes of JSON.
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

/// Parses a reserve: a percentage of the pool, or a size.
pub fn reserve<'de, D: Deserializer<'de>>(input: D) -> Result<Reserve, D::Error> {
    let text = String::deserialize(input)?;
    match text.strip_suffix('%').map(str::parse::<u8>) {
        Some(Ok(percent)) if percent < 100 => Ok(Reserve::Percent(percent)),
        Some(_) => Err(D::Error::custom(format!("{text:?} is not 0% to 99%"))),
        None => text.parse().map(Reserve::Bytes).map_err(D::Error::custom),
    }
}

/// The default reserve, above kubelet's threshold: it evicts pods when less than 10 % of the node's file system is
/// free.
pub fn reserve_of_a_directory() -> Reserve {
    Reserve::Percent(15)
}

pub fn written_reserve(reserve: Reserve) -> String {
    quoted(match reserve {
        Reserve::Percent(percent) => format!("{percent}%"),
        Reserve::Bytes(bytes) => bytes.to_string(),
    })
}
