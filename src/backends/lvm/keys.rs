//! Configuration of a pool of logical volumes.

use crate::backends::keys::{Keys, quoted, reserve, written_reserve};
use flexvol_storage::{
    host::{
        Reserve,
        lvm::{GroupOrThinPool, Layout, Rules},
    },
    sdk::Bytes,
};
use serde::{Deserialize, Deserializer};
use std::path::PathBuf;

/// The keys of a pool: a volume group, or a thin pool in one.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Written")]
pub struct LvmKeys {
    /// The group or thin pool; `flexvol pool init` made it a pool.
    pub place: GroupOrThinPool,
    /// Rules for its use.
    pub rules: Rules,
    /// Whether unused volumes have no device.
    pub deactivate: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    group: Name,
    thin_pool: Option<Name>,
    stripes: Option<u32>,
    stripe_size: Option<Bytes>,
    #[serde(default, deserialize_with = "some_reserve")]
    reserve: Option<Reserve>,
    overcommit: Option<bool>,
    #[serde(default)]
    deactivate: bool,
}

/// A name that LVM allows.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Name(String);

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(name: String) -> Result<Name, String> {
        match is_name_for_lvm(&name) {
            true => Ok(Name(name)),
            false => Err(format!("{name:?} is no name that LVM allows")),
        }
    }
}

/// Whether LVM allows the name (`validate_name` in LVM's lib/misc/lvm-string.c). Such a name cannot be mistaken for
/// an option.
pub fn is_name_for_lvm(name: &str) -> bool {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || b"_.+-".contains(&c);
    !name.is_empty()
        && name.len() < 128
        && !name.starts_with('-')
        && name != "."
        && name != ".."
        && name.bytes().all(allowed)
}

fn some_reserve<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Reserve>, D::Error> {
    reserve(input).map(Some)
}

impl TryFrom<Written> for LvmKeys {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<LvmKeys, &'static str> {
        let is_thin = written.thin_pool.is_some();
        if is_thin && (written.stripes.is_some() || written.stripe_size.is_some()) {
            return Err(
                "stripes and stripe_size mean nothing in a thin pool, whose volumes lie where it lies",
            );
        }
        if !is_thin && written.overcommit.is_some() {
            return Err("overcommit means nothing without a thin_pool");
        }
        if !(1..=128).contains(&written.stripes.unwrap_or(1)) {
            return Err("stripes must be 1 to 128");
        }
        let is_stripe = |size: Bytes| size.0.is_power_of_two() && size >= Bytes(4 << 10);
        if !written.stripe_size.is_none_or(is_stripe) {
            return Err("stripe_size must be a power of two, 4Ki or more");
        }
        // Unlike a file system, a group is not normally shared with other uses, so nothing is reserved. A thin pool
        // needs free blocks for the growth of its metadata.
        let usual = Reserve::Percent(if is_thin { 5 } else { 0 });
        Ok(LvmKeys {
            place: GroupOrThinPool {
                group: written.group.0,
                thin_pool: written.thin_pool.map(|name| name.0),
            },
            rules: Rules {
                layout: Layout {
                    stripes: written.stripes.unwrap_or(1),
                    stripe_size: written.stripe_size,
                },
                reserve: written.reserve.unwrap_or(usual),
                largest: None,
                keeps: false,
                overcommit: written.overcommit.unwrap_or_default(),
            },
            deactivate: written.deactivate,
        })
    }
}

impl Keys for LvmKeys {
    fn place(&self) -> (&'static str, PathBuf) {
        let group = PathBuf::from(&self.place.group);
        match &self.place.thin_pool {
            Some(pool) => ("thin_pool", group.join(pool)),
            None => ("group", group),
        }
    }

    fn written(&self) -> Vec<(&'static str, String)> {
        let Layout {
            stripes,
            stripe_size,
        } = self.rules.layout;
        let mut written = vec![("group", quoted(&self.place.group))];
        match &self.place.thin_pool {
            Some(pool) => written.extend([
                ("thin_pool", quoted(pool)),
                ("overcommit", self.rules.overcommit.to_string()),
            ]),
            None => written.push(("stripes", stripes.to_string())),
        }
        written.extend(stripe_size.map(|size| ("stripe_size", quoted(size.to_string()))));
        written.extend([
            ("reserve", written_reserve(self.rules.reserve)),
            ("deactivate", self.deactivate.to_string()),
        ]);
        written
    }
}
