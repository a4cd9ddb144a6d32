//! One place volumes are carved from, as an administrator describes it. Every backend has keys of
//! its own; a key of another backend is a mistake, because whoever wrote it expects something.

use super::{keep::Keep, written::word};
use flexvol_storage::{
    Namespaces, Policy,
    host::{
        Allocation, Reserve,
        limit::Projects,
        lvm::{self, Layout, Place},
        pool::Rules,
    },
    sdk::{Bytes, Filesystem},
};
use serde::{Deserialize, Deserializer, de};
use std::{fmt, path::PathBuf};

/// One place volumes are carved from.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Which pods may mount the pool's volumes.
    pub namespaces: Namespaces,
    /// The file system of a volume that asks for none.
    pub filesystem: Filesystem,
    /// No volume gets larger than this.
    pub largest: Option<Bytes>,
    /// A volume that was deleted is kept so long; `None` where the configuration was lost.
    pub keep_deleted: Option<Keep>,
    /// What only its backend heeds.
    pub storage: Storage,
}

/// What a pool's backend is told.
#[derive(Clone, Debug)]
pub enum Storage {
    /// For the backend `loop`.
    Loop(Images),
    /// For the backend `dir`.
    Dir(Directories),
    /// For the backend `lvm`.
    Lvm(VolumeGroup),
}

/// A directory of images.
#[derive(Clone, Debug)]
pub struct Images {
    /// The directory, made a pool by `flexvol pool init`.
    pub path: PathBuf,
    /// Allocate blocks when they are written and not before.
    pub thin: bool,
    /// What is left free in the pool's file system.
    pub reserve: Reserve,
}

impl Images {
    /// Whether images have their blocks from the beginning.
    pub fn allocation(&self) -> Allocation {
        match self.thin {
            true => Allocation::Thin,
            false => Allocation::Full,
        }
    }
}

/// A directory of directories.
#[derive(Clone, Debug)]
pub struct Directories {
    /// The directory, made a pool by `flexvol pool init`.
    pub path: PathBuf,
    /// What is left free, what may be promised, and which projects volumes get.
    pub rules: Rules,
}

/// A volume group, or a thin pool in one.
#[derive(Clone, Debug)]
pub struct VolumeGroup {
    /// Which one, made a pool by `flexvol pool init`.
    pub place: Place,
    /// How it may be used.
    pub rules: lvm::Rules,
    /// Volumes that nobody uses have no device.
    pub deactivate: bool,
}

/// Every key that a pool of any backend may have, as it is written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct Keys {
    path: Option<PathBuf>,
    thin: Option<bool>,
    #[serde(deserialize_with = "reserve")]
    reserve: Option<Reserve>,
    overcommit: Option<bool>,
    #[serde(deserialize_with = "projects")]
    projects: Option<Projects>,
    group: Option<String>,
    thin_pool: Option<String>,
    stripes: Option<u32>,
    stripe_size: Option<Bytes>,
    deactivate: Option<bool>,
    #[serde(deserialize_with = "word")]
    namespaces: Namespaces,
    #[serde(deserialize_with = "filesystem")]
    filesystem: Option<Filesystem>,
    largest: Option<Bytes>,
    keep_deleted: Keep,
}

/// A table and nothing else. What serde derives takes a list too, as the values of the keys in the
/// order they are written above.
impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Keys, D::Error> {
        struct Table;
        impl<'de> de::Visitor<'de> for Table {
            type Value = Keys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, table: A) -> Result<Keys, A::Error> {
                Keys::deserialize(de::value::MapAccessDeserializer::new(table))
            }
        }
        input.deserialize_map(Table)
    }
}

/// What is wrong with one pool.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Its name.
    Name,
    /// A key its backend cannot do without.
    Missing(&'static str),
    /// A key its backend does not have.
    Strange(&'static str),
    /// A key's value.
    Value(&'static str, &'static str),
    /// A key that says the place of another pool, which it names.
    Taken(&'static str, String),
}

impl Fault {
    /// The key it is about.
    pub fn key(&self) -> Option<&'static str> {
        match self {
            Fault::Name => None,
            Fault::Missing(key)
            | Fault::Strange(key)
            | Fault::Value(key, _)
            | Fault::Taken(key, _) => Some(key),
        }
    }

    /// What an administrator reads.
    pub fn text(&self, pool: &str, backend: &str) -> String {
        match self {
            Fault::Name => {
                format!("pool {pool:?}: a pool's name is 1 to 63 of a-z, 0-9 and '-'")
            }
            Fault::Missing(key) => format!("pool {pool:?}: {key} is missing"),
            Fault::Strange(key) => {
                format!("pool {pool:?}: the backend {backend} has no key {key}")
            }
            Fault::Value(key, must) => format!("pool {pool:?}: {key} {must}"),
            Fault::Taken(key, other) => format!(
                "pool {pool:?}: {key} is that of pool {other:?} too; give each pool a place of its own"
            ),
        }
    }
}

impl Keys {
    /// A pool that is told nothing but its directory.
    pub fn at(path: &str) -> Keys {
        Keys {
            path: Some(path.into()),
            ..Keys::default()
        }
    }

    /// The pool called `name`, whose backend takes its keys by `storage`; or all that is wrong.
    pub fn complete(
        mut self,
        name: &str,
        storage: fn(&mut Keys) -> Result<Storage, Fault>,
    ) -> Result<PoolConfig, Vec<Fault>> {
        let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        let mut faults = Vec::new();
        if name.is_empty() || name.len() > 63 || !name.bytes().all(plain) {
            faults.push(Fault::Name);
        }
        if self.largest == Some(Bytes(0)) {
            faults.push(Fault::Value("largest", "must be more than 0"));
        }
        let storage = storage(&mut self);
        faults.extend(self.left().into_iter().map(Fault::Strange));
        match storage {
            Ok(storage) if faults.is_empty() => Ok(PoolConfig {
                namespaces: self.namespaces,
                filesystem: self.filesystem.unwrap_or(Policy::default().filesystem),
                largest: self.largest,
                keep_deleted: Some(self.keep_deleted),
                storage,
            }),
            Ok(_) => Err(faults),
            Err(fault) => {
                faults.push(fault);
                Err(faults)
            }
        }
    }

    /// The keys of backends that nobody took.
    fn left(&self) -> Vec<&'static str> {
        let keys = [
            ("path", self.path.is_some()),
            ("thin", self.thin.is_some()),
            ("reserve", self.reserve.is_some()),
            ("overcommit", self.overcommit.is_some()),
            ("projects", self.projects.is_some()),
            ("group", self.group.is_some()),
            ("thin_pool", self.thin_pool.is_some()),
            ("stripes", self.stripes.is_some()),
            ("stripe_size", self.stripe_size.is_some()),
            ("deactivate", self.deactivate.is_some()),
        ];
        let left = keys.into_iter().filter(|(_, is_left)| *is_left);
        left.map(|(key, _)| key).collect()
    }

    fn path(&mut self) -> Result<PathBuf, Fault> {
        match self.path.take() {
            None => Err(Fault::Missing("path")),
            Some(path) if path.is_absolute() => Ok(path),
            Some(_) => Err(Fault::Value("path", "must be absolute")),
        }
    }

    /// Kubelet evicts pods when less than 10 % of the node's file system is free.
    fn reserve_of_a_directory(&mut self) -> Reserve {
        self.reserve.take().unwrap_or(Reserve::Percent(15))
    }
}

impl Storage {
    /// The key that says a place which is the other's too. Each would keep the volumes of both by its
    /// own rules.
    pub fn shares(&self, other: &Storage) -> Option<&'static str> {
        match (self, other) {
            (Storage::Loop(a), Storage::Loop(b)) => (a.path == b.path).then_some("path"),
            (Storage::Dir(a), Storage::Dir(b)) => (a.path == b.path).then_some("path"),
            (Storage::Lvm(a), Storage::Lvm(b)) => {
                let is_thin = a.place.thin_pool.is_some();
                (a.place == b.place).then_some(if is_thin { "thin_pool" } else { "group" })
            }
            _ => None,
        }
    }

    /// Takes the keys of a pool of the backend `loop`.
    pub fn images(keys: &mut Keys) -> Result<Storage, Fault> {
        let (thin, reserve) = (keys.thin.take(), keys.reserve_of_a_directory());
        Ok(Storage::Loop(Images {
            path: keys.path()?,
            thin: thin.unwrap_or_default(),
            reserve,
        }))
    }

    /// Takes the keys of a pool of the backend `dir`.
    pub fn directories(keys: &mut Keys) -> Result<Storage, Fault> {
        let rules = Rules {
            reserve: keys.reserve_of_a_directory(),
            overcommit: keys.overcommit.take().unwrap_or_default(),
            projects: keys.projects.take().unwrap_or_default(),
        };
        let path = keys.path()?;
        // All its volumes share the pool's file system.
        match keys.filesystem {
            None => Ok(Storage::Dir(Directories { path, rules })),
            Some(_) => Err(Fault::Strange("filesystem")),
        }
    }

    /// Takes the keys of a pool of the backend `lvm`.
    pub fn volume_group(keys: &mut Keys) -> Result<Storage, Fault> {
        let (group, thin_pool) = (keys.group.take(), keys.thin_pool.take());
        let (stripes, stripe_size) = (keys.stripes.take(), keys.stripe_size.take());
        let (reserve, overcommit) = (keys.reserve.take(), keys.overcommit.take());
        let deactivate = keys.deactivate.take().unwrap_or_default();
        let group = group.ok_or(Fault::Missing("group"))?;
        for (key, name) in [("group", Some(&group)), ("thin_pool", thin_pool.as_ref())] {
            if name.is_some_and(|name| !is_name_for_lvm(name)) {
                return Err(Fault::Value(key, "is no name that LVM allows"));
            }
        }
        if thin_pool.is_some() && (stripes.is_some() || stripe_size.is_some()) {
            let key = if stripes.is_some() {
                "stripes"
            } else {
                "stripe_size"
            };
            return Err(Fault::Value(
                key,
                "means nothing in a thin pool, whose volumes lie where it lies",
            ));
        }
        if thin_pool.is_none() && overcommit.is_some() {
            return Err(Fault::Value(
                "overcommit",
                "means nothing without a thin_pool",
            ));
        }
        if !(1..=128).contains(&stripes.unwrap_or(1)) {
            return Err(Fault::Value("stripes", "must be 1 to 128"));
        }
        let is_stripe = |size: Bytes| size.0.is_power_of_two() && size >= Bytes(4 << 10);
        if !stripe_size.is_none_or(is_stripe) {
            return Err(Fault::Value(
                "stripe_size",
                "must be a power of two, 4Ki or more",
            ));
        }
        // Nobody else takes from a group what was not meant for volumes, as everybody does from a
        // file system. A thin pool whose last block is promised has none for its metadata's growth.
        let usual = Reserve::Percent(if thin_pool.is_some() { 5 } else { 0 });
        Ok(Storage::Lvm(VolumeGroup {
            place: Place { group, thin_pool },
            rules: lvm::Rules {
                layout: Layout {
                    stripes: stripes.unwrap_or(1),
                    stripe_size,
                },
                reserve: reserve.unwrap_or(usual),
                overcommit: overcommit.unwrap_or_default(),
            },
            deactivate,
        }))
    }
}

/// `validate_name` in LVM's lib/misc/lvm-string.c. Such a name is never taken for an option.
pub fn is_name_for_lvm(name: &str) -> bool {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || b"_.+-".contains(&c);
    !name.is_empty()
        && name.len() < 128
        && !name.starts_with('-')
        && name != "."
        && name != ".."
        && name.bytes().all(allowed)
}

impl PoolConfig {
    /// What every pool heeds.
    pub fn policy(&self) -> Policy {
        Policy {
            namespaces: self.namespaces,
            filesystem: self.filesystem,
            largest: self.largest,
            keep_deleted: self.keep_deleted.map(Keep::duration),
        }
    }
}

fn filesystem<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Filesystem>, D::Error> {
    word(input).map(Some)
}

fn projects<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Projects>, D::Error> {
    let text = String::deserialize(input)?;
    text.parse().map(Some).map_err(de::Error::custom)
}

fn reserve<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Reserve>, D::Error> {
    let text = String::deserialize(input)?;
    let percent = text.strip_suffix('%').map(str::parse::<u8>);
    match percent {
        Some(Ok(percent)) if percent < 100 => Ok(Some(Reserve::Percent(percent))),
        Some(_) => Err(de::Error::custom(format!("{text:?} is not 0% to 99%"))),
        None => text
            .parse()
            .map(|bytes| Some(Reserve::Bytes(bytes)))
            .map_err(de::Error::custom),
    }
}
