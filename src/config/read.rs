//! Parsing of a configuration for a driver of one name. The first mistake is reported with its line and column.

use super::{Config, Keep, Level};
use crate::backends::{self, Backend, PoolConfig, Pools};
use flexvol_storage::{
    Growth, Names, Namespaces, Policy, Role,
    host::Reserve,
    sdk::{Bytes, Filesystem},
};
use serde::{
    Deserialize, Deserializer,
    de::{Error, IntoDeserializer},
};
use std::{fmt, ops::Range};
use toml::{
    Spanned,
    de::{self, DeTable, DeValue},
};

/// A mistake in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The line, counted from 1.
    pub line: usize,
    pub column: usize,
    /// The description.
    pub what: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mistake { line, column, what } = self;
        write!(f, "line {line}, column {column}: {what}")
    }
}

impl std::error::Error for Mistake {}

/// A mistake, with its range of bytes in the text.
struct Fault {
    place: Option<Range<usize>>,
    what: String,
}

impl From<de::Error> for Fault {
    fn from(error: de::Error) -> Fault {
        Fault {
            place: error.span(),
            what: error.message().to_owned(),
        }
    }
}

/// The keys of the whole driver.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Whole {
    backend: Option<Spanned<String>>,
    #[serde(deserialize_with = "word")]
    role: Role,
    attach: bool,
    #[serde(deserialize_with = "word")]
    growth: Growth,
    #[serde(deserialize_with = "word")]
    names: Names,
    #[serde(deserialize_with = "word")]
    log: Level,
}

/// The keys that pools of all backends share.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Common {
    #[serde(deserialize_with = "word")]
    namespaces: Namespaces,
    #[serde(deserialize_with = "some_word")]
    filesystem: Option<Filesystem>,
    #[serde(deserialize_with = "some_room")]
    largest: Option<Bytes>,
    keep_deleted: Keep,
    #[serde(deserialize_with = "some_share")]
    keep_at_most: Option<Reserve>,
}

/// The names of these keys. `filesystem` has no effect if all volumes share one file system.
const COMMON: [&str; 5] = [
    "namespaces",
    "largest",
    "keep_deleted",
    "keep_at_most",
    "filesystem",
];

fn common(backend: &Backend) -> &'static [&'static str] {
    match backend.formats {
        true => &COMMON,
        false => &COMMON[..4],
    }
}

/// Parses the configuration of the driver called `name`.
pub fn read(text: &str, name: &str) -> Result<Config, Mistake> {
    understand(text, name).map_err(|fault| {
        let start = fault.place.map_or(0, |place| place.start);
        let before = text.get(..start).unwrap_or_default();
        let line = before.rsplit('\n').next().unwrap_or_default();
        Mistake {
            line: 1 + before.matches('\n').count(),
            column: 1 + line.chars().count(),
            what: fault.what,
        }
    })
}

fn understand(text: &str, name: &str) -> Result<Config, Fault> {
    let mut table = DeTable::parse(text)?;
    let pools = table.get_mut().remove("pools");
    let whole = Whole::deserialize(de::Deserializer::from(table))?;
    let said = whole.backend.as_ref();
    let backend = said.map_or(Config::default_backend(name), |said| said.get_ref());
    let backend = backends::find(backend).map_err(|unknown| Fault {
        place: said.map(Spanned::span),
        what: unknown.to_string(),
    })?;
    let place = pools.as_ref().map(Spanned::span);
    let pools = match pools.map(Spanned::into_inner) {
        None => DeTable::new(),
        Some(DeValue::Table(pools)) => pools,
        Some(_) => {
            let what = "pools are tables: write [pools.NAME]".to_owned();
            return Err(Fault { place, what });
        }
    };
    // An empty table of pools means the same as none.
    let pools = match backend.default_pools {
        _ if !pools.is_empty() => pools,
        Some(pool) => DeTable::parse(pool)?.into_inner(),
        // A control plane host has no storage, so it needs no pool.
        None if whole.role == Role::Controller => pools,
        None => {
            let what = format!(
                "the backend {} needs a pool: write [pools.NAME]",
                backend.name
            );
            return Err(Fault { place, what });
        }
    };
    let mut read = Pools::new();
    for (key, value) in pools {
        let (name, place) = (key.get_ref(), key.span());
        let pool = pool(name, value, &place, backend)?;
        let (key, at) = pool.keys.place();
        let is_there = |it: &(_, &PoolConfig)| it.1.keys.place().1 == at;
        if let Some((other, _)) = read.iter().find(is_there) {
            let what = format!(
                "pool {name:?}: {key} is that of pool {other:?} too; give each pool a place of its own"
            );
            let place = Some(place);
            return Err(Fault { place, what });
        }
        read.insert(name.to_string(), pool);
    }
    Ok(Config {
        backend,
        role: whole.role,
        attach: whole.attach,
        growth: whole.growth,
        names: whole.names,
        log: whole.log,
        pools: read,
    })
}

/// Parses one pool, whose name stands at `place`.
fn pool(
    name: &str,
    value: Spanned<DeValue<'_>>,
    place: &Range<usize>,
    backend: &Backend,
) -> Result<PoolConfig, Fault> {
    let fault = |what: &str| Fault {
        place: Some(place.clone()),
        what: format!("pool {name:?}, backend {}: {what}", backend.name),
    };
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    if name.is_empty() || name.len() > 63 || !name.bytes().all(plain) {
        return Err(fault("a pool's name is 1 to 63 of a-z, 0-9 and '-'"));
    }
    let DeValue::Table(table) = value.into_inner() else {
        return Err(fault("a pool is a table: write [pools.NAME]"));
    };
    let keys = common(backend);
    let is_common = |key: &str| keys.contains(&key);
    let (common, own): (DeTable<'_>, DeTable<'_>) = table
        .into_iter()
        .partition(|(key, _)| is_common(key.get_ref()));
    let input = |table| de::Deserializer::from(Spanned::new(place.clone(), table));
    let both = Common::deserialize(input(common))
        .and_then(|common| Ok((common, (backend.keys)(input(own))?)));
    let (common, own) = both.map_err(|error| {
        let mut what = error.message().to_owned();
        // The backend's error names only its own keys.
        if what.starts_with("unknown field") {
            what += &format!(", `{}`", keys.join("`, `"));
        }
        Fault {
            place: error.span().or(Some(place.clone())),
            ..fault(&what)
        }
    })?;
    let mut policy = Policy::default();
    policy.namespaces = common.namespaces;
    policy.filesystem = common.filesystem.unwrap_or(policy.filesystem);
    policy.largest = common.largest;
    policy.keep_deleted = Some(common.keep_deleted.duration());
    policy.keep_at_most = common.keep_at_most;
    Ok(PoolConfig { policy, keys: own })
}

/// Deserializes an enum from a string only. The derived implementation also accepts a table with the word as its
/// key.
fn word<'de, D: Deserializer<'de>, T: Deserialize<'de>>(input: D) -> Result<T, D::Error> {
    T::deserialize(String::deserialize(input)?.into_deserializer())
}

fn some_word<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    input: D,
) -> Result<Option<T>, D::Error> {
    word(input).map(Some)
}

fn some_share<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Reserve>, D::Error> {
    match backends::reserve(input)? {
        share if share.of(Bytes(u64::MAX)) == Bytes(0) => Err(D::Error::custom(
            "keep_at_most must be more than 0; leave keep_deleted out to keep nothing",
        )),
        share => Ok(Some(share)),
    }
}

fn some_room<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Bytes>, D::Error> {
    match Bytes::deserialize(input)? {
        Bytes(0) => Err(D::Error::custom("largest must be more than 0")),
        size => Ok(Some(size)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Option<Mistake> {
        read(text, "flexvol").err()
    }

    #[test]
    fn a_right_configuration_has_no_mistake() {
        for text in [
            "",
            "attach = true\n[pools.a]\npath = \"/a\"\nreserve = \"5%\"\nlargest = \"1Ti\"\n",
            "pools.a.path = \"/x\"",
            "[pools.a]\npath = \"/a\"\n[pools.b]\npath = \"/a/b\"\n",
            "backend = \"lvm\"\n[pools.a]\ngroup = \"g\"\n[pools.b]\ngroup = \"g\"\nthin_pool = \"t\"\n[pools.c]\ngroup = \"g\"\nthin_pool = \"u\"\n",
        ] {
            assert_eq!(told(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_mistake_is_told_with_its_line_and_column() {
        let pool = "[pools.a]\npath = \"/a\"\n";
        let dir = "backend = \"dir\"\n[pools.a]\npath = \"/a\"\n";
        let lvm = "backend = \"lvm\"\n[pools.a]\ngroup = \"g\"\n";
        let thin = format!("{lvm}thin_pool = \"t\"\n");
        for (text, place, words) in [
            ("attach = true\n= 1\n", (2, 1), ""),
            ("backend = \"loop\"\natach = true\n", (2, 1), "`atach`"),
            ("growth = \"sometimes\"\n", (1, 10), "sometimes"),
            ("\n  log = 3\n", (2, 9), "invalid type"),
            ("role = { node = {} }\n", (1, 8), "a string"),
            ("log.info = []\n", (1, 1), "a string"),
            ("backend = \"lop\"\n", (1, 11), "\"lop\""),
            ("backend = \"lvm\"\n", (1, 1), "needs a pool"),
            ("attach = true\npools = 3\n", (2, 9), "[pools.NAME]"),
            ("pools.a = [\"/a\"]\n", (1, 7), "a table"),
            ("[pools]\na = 1", (2, 1), "a table"),
            ("[pools.a]\n", (1, 8), "missing field `path`"),
            ("[pools.D]\npath = \"/d\"\n", (1, 8), "\"D\""),
            ("[pools.a]\npath = \"a\"\n", (2, 8), "absolute"),
            (&format!("{pool}reserve = \"120%\"\n"), (3, 11), "120%"),
            (&format!("{pool}largest = \"0\"\n"), (3, 11), "largest must"),
            (
                &format!("{pool}namespaces = {{ any = {{}} }}\n"),
                (3, 14),
                "a string",
            ),
            (&format!("{pool}colour = \"red\"\n"), (3, 1), "`colour`"),
            (&format!("{pool}keep_at_most = \"lots\"\n"), (3, 16), "lots"),
            (
                &format!("{pool}keep_at_most = \"0%\"\n"),
                (3, 16),
                "more than 0",
            ),
            (&format!("{pool}larges = \"1Gi\"\n"), (3, 1), "`largest`"),
            (&format!("{pool}group = \"g\"\n"), (3, 1), "backend loop"),
            (&format!("{dir}thin = true\n"), (4, 1), "`thin`"),
            (
                &format!("{dir}filesystem = \"ext4\"\n"),
                (4, 1),
                "`filesystem`",
            ),
            (
                &format!("{dir}projects = \"9-5\"\n"),
                (4, 12),
                "no range of projects",
            ),
            (
                "backend = \"lvm\"\n[pools.a]\ngroup = \"-g\"\n",
                (3, 9),
                "LVM allows",
            ),
            (
                &format!("{lvm}overcommit = true\n"),
                (2, 8),
                "without a thin_pool",
            ),
            (&format!("{lvm}stripes = 129\n"), (2, 8), "1 to 128"),
            (
                &format!("{lvm}stripe_size = \"5Ki\"\n"),
                (2, 8),
                "power of two",
            ),
            (&format!("{thin}stripes = 2\n"), (2, 8), "in a thin pool"),
            (
                &format!("{pool}[pools.b]\npath = \"/a/\"\n"),
                (3, 8),
                "path is that of pool \"a\"",
            ),
            (
                &format!("{dir}[pools.b]\npath = \"/a\"\n"),
                (4, 8),
                "path is that of pool \"a\"",
            ),
            (
                &format!("{lvm}[pools.b]\ngroup = \"g\"\n"),
                (4, 8),
                "group is that of pool \"a\"",
            ),
            (
                &format!("{thin}[pools.b]\ngroup = \"g\"\nthin_pool = \"t\"\n"),
                (5, 8),
                "thin_pool is that of pool \"a\"",
            ),
        ] {
            let mistake = told(text).unwrap_or_else(|| panic!("{text:?} is taken"));
            assert_eq!((mistake.line, mistake.column), place, "{text:?}: {mistake}");
            assert!(mistake.what.contains(words), "{text:?}: {mistake}");
        }
    }
}
