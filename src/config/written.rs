//! A configuration as it is written, and what it means for a driver of one name.

use super::{Config, Level, PoolConfig, pool};
use crate::backends;
use flexvol_storage::{Growth, Names, Role};
use serde::{Deserialize, Deserializer, de::IntoDeserializer};
use std::collections::BTreeMap;

/// What an administrator wrote.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Written {
    backend: Option<String>,
    #[serde(deserialize_with = "word")]
    role: Role,
    attach: bool,
    #[serde(deserialize_with = "word")]
    growth: Growth,
    #[serde(deserialize_with = "word")]
    names: Names,
    #[serde(deserialize_with = "word")]
    log: Level,
    pools: Option<BTreeMap<String, pool::Keys>>,
}

/// What is wrong, and the path of keys to where it stands or should.
#[derive(Clone, Debug)]
pub struct Fault {
    pub path: Vec<String>,
    pub what: String,
}

impl Fault {
    fn at(key: &str, what: String) -> Fault {
        Fault {
            path: vec![key.to_owned()],
            what,
        }
    }
}

impl Written {
    /// The configuration of the driver called `name`; or all that is wrong.
    pub fn complete(self, name: &str) -> Result<Config, Vec<Fault>> {
        let backend = self
            .backend
            .as_deref()
            .unwrap_or(Config::default_backend(name));
        let backend = backends::find(backend)
            .map_err(|unknown| vec![Fault::at("backend", unknown.to_string())])?;
        // A table without a pool says nothing of pools.
        let written = self.pools.filter(|pools| !pools.is_empty());
        let written = match (written, backend.default_pool) {
            (Some(pools), _) => pools,
            (None, Some(path)) => BTreeMap::from([("default".to_owned(), pool::Keys::at(path))]),
            // A control plane host carves nothing.
            (None, None) if self.role == Role::Controller => BTreeMap::new(),
            (None, None) => {
                return Err(vec![Fault::at(
                    "pools",
                    format!(
                        "the backend {} needs a pool: write [pools.NAME]",
                        backend.name
                    ),
                )]);
            }
        };
        let (mut pools, mut faults) = (BTreeMap::<String, PoolConfig>::new(), Vec::new());
        for (name, keys) in written {
            let found = match keys.complete(&name, backend.storage) {
                Ok(pool) => {
                    let taken = pools.iter().find_map(|(other, earlier)| {
                        let key = pool.storage.shares(&earlier.storage)?;
                        Some(pool::Fault::Taken(key, other.clone()))
                    });
                    pools.insert(name.clone(), pool);
                    taken.into_iter().collect()
                }
                Err(found) => found,
            };
            faults.extend(found.into_iter().map(|fault| {
                Fault {
                    path: ["pools", &name]
                        .into_iter()
                        .chain(fault.key())
                        .map(str::to_owned)
                        .collect(),
                    what: fault.text(&name, backend.name),
                }
            }));
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        Ok(Config {
            backend,
            role: self.role,
            attach: self.attach,
            growth: self.growth,
            names: self.names,
            log: self.log,
            pools,
        })
    }
}

/// One word of a few. What serde derives takes a table that has the word for its key, too.
pub fn word<'de, D: Deserializer<'de>, T: Deserialize<'de>>(input: D) -> Result<T, D::Error> {
    T::deserialize(String::deserialize(input)?.into_deserializer())
}
