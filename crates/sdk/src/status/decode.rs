//! Decoding of any driver's reply, as tolerant and as strict as Go's `encoding/json` is in kubelet: keys match in
//! any case, the last duplicate wins, null means absent, unknown keys are ignored. A value of the wrong type
//! invalidates the reply.

use super::{Capabilities, DriverStatus, PoolSpace, Status};
use crate::{Bytes, ErrorClass};
use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, MapAccess},
};
use std::fmt;

impl<'de> Deserialize<'de> for DriverStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reply)
    }
}

struct Reply;

impl<'de> de::Visitor<'de> for Reply {
    type Value = DriverStatus;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the object of a driver's reply")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DriverStatus, A::Error> {
        // Like kubelet, treat an absent or unknown status as a failure.
        let mut reply = DriverStatus::new(Status::Failure);
        while let Some(key) = next_key(&mut map)? {
            match key.as_str() {
                "status" => put(&mut map, |word: String| {
                    reply.status = match word.as_str() {
                        "Success" => Status::Success,
                        "Not supported" => Status::NotSupported,
                        _ => Status::Failure,
                    };
                })?,
                "message" => put(&mut map, |text| reply.message = Some(text))?,
                "device" => put(&mut map, |text| reply.device = Some(text))?,
                "volumename" => put(&mut map, |text| reply.volume_name = Some(text))?,
                "attached" => put(&mut map, |attached| reply.attached = Some(attached))?,
                "capabilities" => put(&mut map, |read| reply.capabilities = Some(read))?,
                "volumenewsize" => {
                    put(&mut map, |bytes| reply.volume_new_size = Some(Bytes(bytes)))?;
                }
                "options" => put(&mut map, |options| reply.options = options)?,
                "capacity" => put(&mut map, |bytes| reply.capacity = Some(Bytes(bytes)))?,
                "missing" => put(&mut map, |bytes| reply.shortfall = Some(Bytes(bytes)))?,
                "poolspace" => put(&mut map, |space| reply.pool_space = Some(space))?,
                "topology" => put(&mut map, |labels| reply.topology = labels)?,
                "fstype" => put(&mut map, |text| reply.fs_type = Some(text))?,
                "errorclass" => put(&mut map, |word: String| {
                    reply.error_class = ErrorClass::from_word(&word);
                })?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(reply)
    }
}

impl<'de> Deserialize<'de> for Capabilities {
    /// Absent keys keep their default, as in kubelet.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Told)
    }
}

struct Told;

impl<'de> de::Visitor<'de> for Told {
    type Value = Capabilities;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of capabilities")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Capabilities, A::Error> {
        let mut told = Capabilities::default();
        while let Some(key) = next_key(&mut map)? {
            let capability = match key.as_str() {
                "attach" => &mut told.attach,
                "selinuxrelabel" => &mut told.selinux_relabel,
                "supportsmetrics" => &mut told.supports_metrics,
                "fsgroup" => &mut told.fs_group,
                "requiresfsresize" => &mut told.requires_fs_resize,
                "concurrentfsresize" => &mut told.concurrent_fs_resize,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            put(&mut map, |has| *capability = has)?;
        }
        Ok(told)
    }
}

impl<'de> Deserialize<'de> for PoolSpace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Space)
    }
}

struct Space;

impl<'de> de::Visitor<'de> for Space {
    type Value = PoolSpace;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the space of a pool")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PoolSpace, A::Error> {
        let mut space = PoolSpace::default();
        while let Some(key) = next_key(&mut map)? {
            let bytes = match key.as_str() {
                "pool" => {
                    put(&mut map, |name| space.pool = name)?;
                    continue;
                }
                "size" => &mut space.size,
                "free" => &mut space.free,
                "promised" => &mut space.promised,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            put(&mut map, |number| *bytes = Some(Bytes(number)))?;
        }
        Ok(space)
    }
}

/// Returns the next member's key in lower case, because keys match in any case.
fn next_key<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<String>, A::Error> {
    let key = map.next_key::<String>()?;
    Ok(key.map(|key| key.to_ascii_lowercase()))
}

/// Passes the member's value on, unless it is null.
fn put<'de, T: Deserialize<'de>, A: MapAccess<'de>>(
    map: &mut A,
    keep: impl FnOnce(T),
) -> Result<(), A::Error> {
    map.next_value::<Option<T>>().map(|value| {
        value.map(keep);
    })
}
