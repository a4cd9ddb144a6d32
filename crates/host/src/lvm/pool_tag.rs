//! The tag that makes a volume group, or a thin pool, a pool.

use super::{key::PoolKey, view::View, volume_in};
use crate::pool::PoolId;
use flexvol_sdk::{Error, ErrorKind, Result};

/// Prefix of the tag; a version, the pool's key and the group's UUID follow.
const POOL: &str = "flexvol-pool=";
/// Version of new tags.
const VERSION: &str = "1";

/// A pool's tag.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PoolTag<'a> {
    pub(super) text: &'a str,
    pub(super) key: PoolKey,
    /// UUID, without dashes, of the group that got the tag. A copied group gets another UUID and keeps its tags.
    pub(super) group: &'a str,
}

/// Whether a tag is that of the pool with this id, in any group.
pub(super) fn is_of_pool(tag: &str, id: PoolId) -> bool {
    let key = |field: &str| PoolKey::parse(field.strip_prefix("key=")?).ok();
    tag.strip_prefix(POOL).is_some_and(|fields| {
        let mut keys = fields.split(':').filter_map(key);
        keys.any(|key| key.id() == id)
    })
}

/// Whether a tag makes something in the group with this UUID a pool.
pub(super) fn is_of_group(tag: &str, group: &str) -> bool {
    let of = tag
        .strip_prefix(POOL)
        .and_then(|fields| fields.split(':').nth(2));
    of.and_then(|field| field.strip_prefix("group=")) == Some(group)
}

/// Returns the error for a group with volumes of the driver and without a pool's tag. That is a fact about the node and
/// not about a claim, which another node may serve.
pub(super) fn tag_is_lost() -> Error {
    Error::new(
        ErrorKind::Configuration,
        "the volume group has volumes of flexvol and has lost the tag that makes it their pool; bring that back from LVM's archive of its metadata (`vgcfgrestore --list`), and do not make it a new pool",
    )
}

/// Returns the tag that makes the group with this UUID, or a thin pool in it, the pool with this key.
pub(super) fn pool_tag(key: PoolKey, group: &str) -> String {
    format!("{POOL}{VERSION}:key={}:group={group}", key.text())
}

impl View {
    /// Whether the selected volumes include one of the driver.
    pub(super) fn has_our_volumes(&self) -> bool {
        self.volumes
            .iter()
            .any(|volume| volume_in(&volume.name).is_some())
    }

    /// Returns the pool's id.
    ///
    /// # Errors
    /// As for [`View::key`].
    pub fn id(&self) -> Result<PoolId> {
        Ok(self.key()?.id())
    }

    /// Returns the pool's key.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when this is not a pool, [`ErrorKind::Configuration`] when its tag is lost, cannot be
    /// parsed, or was made for another group.
    pub fn key(&self) -> Result<PoolKey> {
        let tag = self.pool_tag()?.ok_or_else(|| {
            if self.has_our_volumes() {
                return tag_is_lost();
            }
            Error::new(
                ErrorKind::NotFound,
                "the volume group is not a pool of flexvol, or is that of another disk; a new one without volumes is made one by `flexvol pool init`",
            )
        })?;
        if tag.group == self.uuid {
            return Ok(tag.key);
        }
        Err(Error::new(
            ErrorKind::Configuration,
            "the volume group has the tag of another one: it is a copy, or got another UUID since; if the other is gone for good, this takes its place after `flexvol pool init`",
        )
        .because(format!("the tag is of {}, this is {}", tag.group, self.uuid)))
    }

    /// Returns the pool's tag; `None` if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Configuration`] when the tag cannot be parsed.
    pub(super) fn pool_tag(&self) -> Result<Option<PoolTag<'_>>> {
        let wrong = |what| Err(Error::new(ErrorKind::Configuration, what));
        let mut tags = self.tags.iter().filter(|tag| tag.starts_with(POOL));
        let (Some(text), second) = (tags.next(), tags.next()) else {
            return Ok(None);
        };
        if second.is_some() {
            return wrong("the volume group has two tags of pools");
        }
        let mut fields = text[POOL.len()..].split(':');
        match fields.next() {
            Some(VERSION) => {}
            Some(version) if version.parse::<u32>().is_ok() => {
                return wrong("the pool was made by a newer flexvol");
            }
            _ => return wrong("the pool's tag is damaged"),
        }
        let key = fields.next().and_then(|field| field.strip_prefix("key="));
        let group = fields.next().and_then(|field| field.strip_prefix("group="));
        match (key, group, fields.next()) {
            (Some(key), Some(group), None) => Ok(Some(PoolTag {
                text,
                key: PoolKey::parse(key)?,
                group,
            })),
            _ => wrong("the pool's tag is damaged"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::metadata::Metadata, *};
    use flexvol_sdk::{Bytes, ErrorClass};

    #[test]
    fn only_a_groups_own_tag_makes_a_pool() {
        let kind = |tags: &[&str]| {
            let view = View {
                tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
                uuid: "vNUQTT3rQ6iGLe1ZfO1DAeSU1dB4IxBR".to_owned(),
                extent: Bytes(1),
                size: Bytes(1),
                free: Bytes(1),
                metadata: Metadata {
                    size: Bytes(512 << 10),
                    free: Bytes(500 << 10),
                },
                disks: super::super::own::Disks::default(),
                free_of_disks: Vec::new(),
                volumes: Vec::new(),
            };
            view.id().map_err(|error| error.kind())
        };
        let key = PoolKey::parse("00112233445566778899aabbccddeeff").unwrap();
        let tag = pool_tag(key, "vNUQTT3rQ6iGLe1ZfO1DAeSU1dB4IxBR");
        assert_eq!(kind(&["a", &tag]).unwrap(), key.id());
        assert_eq!(kind(&["a", "b"]).unwrap_err(), ErrorKind::NotFound);
        let copied = tag.replace("vNUQTT", "aaaaaa");
        // All that is wrong with a group may be right on another node.
        let class = kind(&[&copied]).unwrap_err().class();
        assert_eq!(class, ErrorClass::Retryable);
        assert_eq!(tag_is_lost().kind().class(), ErrorClass::Retryable);
        let of_no_group = tag.split(":group").next().unwrap();
        for wrong in [
            tag.replace("=1:", "=2:"),
            tag.replace(":group=", ":groups="),
            tag.replace("=1:", "=one:"),
            tag.replace(":key=", ":id="),
            format!("{tag}:more"),
            of_no_group.to_owned(),
            format!("{of_no_group}:"),
            POOL.to_owned(),
        ] {
            assert_eq!(
                kind(&[&wrong]).unwrap_err(),
                ErrorKind::Configuration,
                "{wrong}"
            );
        }
        let twice = kind(&[&tag, &copied]).unwrap_err();
        assert_eq!(twice, ErrorKind::Configuration);
    }

    #[test]
    fn a_pool_is_recognised_in_any_group() {
        let key = PoolKey::parse("00112233445566778899aabbccddeeff").unwrap();
        let (tag, id) = (pool_tag(key, "vNUQTT3rQ6iGLe1ZfO1DAeSU1dB4IxBR"), key.id());
        assert!(is_of_pool(&tag, id));
        for other in [tag.replace("key=00", "key=01"), tag.replace(POOL, "pool=")] {
            assert!(!is_of_pool(&other, id), "{other}");
        }
        assert!(is_of_group(&tag, "vNUQTT3rQ6iGLe1ZfO1DAeSU1dB4IxBR"));
        for (tag, group) in [(tag.as_str(), "vNUQTT"), ("a", "a")] {
            assert!(!is_of_group(tag, group), "{tag} {group}");
        }
    }
}
