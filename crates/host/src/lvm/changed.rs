//! What a change is about: a volume, and what LVM looks for besides when it changes that.

use super::{
    mapping::{UUID_LENGTH, parts},
    own::{Disks, is_hidden},
    report::bare,
    rows::row,
};

/// What a change is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changed<'a> {
    pub(super) group: &'a str,
    pub(super) volume: &'a str,
    /// Its device-mapper UUID, if it is there.
    pub(super) uuid: Option<&'a str>,
    /// The thin pool that it is in, if that is known.
    pub(super) thin_pool: Option<&'a str>,
}

impl Changed<'_> {
    /// Whether LVM may come upon a device. Of whole volumes that are the group's by UUID and by name these are the one that
    /// is changed and its thin pool: no other is in its way.
    pub(super) fn may_come_upon(&self, disks: &Disks, uuid: &str, name: &str) -> bool {
        let by_uuid = disks.names(uuid);
        let by_name = volume_of(uuid, name, self.group);
        (by_uuid || by_name.is_some())
            && (by_uuid != by_name.is_some()
                || is_hidden(uuid, name)
                || self.uuid == Some(uuid)
                || by_name.as_deref() == Some(self.volume)
                || by_name.as_deref() == self.thin_pool)
    }

    /// The volume, its thin pool, and the parts of both, of all that the group has.
    pub(super) fn with_parts(&self, rows: &[PartRow]) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let is_first = |row: &PartRow| {
            row.name() == self.volume
                || Some(row.name()) == self.thin_pool
                || Some(row.uuid().as_str()) == self.uuid
        };
        let mut found: Vec<_> = rows.iter().filter(|row| is_first(row)).collect();
        while let Some(row) = found.pop() {
            if parts.iter().any(|part| part.name == row.name()) {
                continue;
            }
            parts.push(Part {
                name: row.name().to_owned(),
                uuid: Some(row.uuid()),
            });
            let is_below =
                |other: &PartRow| other.parent() == row.name() || other.name() == row.pool();
            found.extend(rows.iter().filter(|other| is_below(other)));
        }
        // It may not be there, or not yet have the name.
        parts.push(Part {
            name: self.volume.to_owned(),
            uuid: self.uuid.map(str::to_owned),
        });
        parts
    }
}

/// A logical volume that LVM looks for when it changes one.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) name: String,
    uuid: Option<String>,
}

impl Part {
    /// Whether a device has its identity or its name, or those of a layer of it.
    pub(super) fn is(&self, group: &str, uuid: &str, name: &str) -> bool {
        let by_uuid = uuid.get(..UUID_LENGTH);
        by_uuid.is_some_and(|volume| self.uuid.as_deref() == Some(volume))
            || volume_of(uuid, name, group).as_ref() == Some(&self.name)
    }
}

row! {
    /// One row of `lvs -a`: a logical volume, or a part of one, whose name is in brackets.
    pub(super) struct PartRow {
        vg_uuid: String,
        lv_uuid: String,
        lv_name: String,
        lv_parent: String,
        pool_lv: String,
    }
}

impl PartRow {
    pub(super) fn name(&self) -> &str {
        without_brackets(&self.lv_name)
    }

    /// The one that it is a part of; empty where it is none.
    pub(super) fn parent(&self) -> &str {
        without_brackets(&self.lv_parent)
    }

    /// The pool, of thin volumes or of a cache, that it has; empty where it has none.
    pub(super) fn pool(&self) -> &str {
        without_brackets(&self.pool_lv)
    }

    /// What the kernel calls its device.
    pub(super) fn uuid(&self) -> String {
        format!("LVM-{}{}", bare(&self.vg_uuid), bare(&self.lv_uuid))
    }
}

fn without_brackets(name: &str) -> &str {
    name.trim_matches(['[', ']'])
}

/// The volume of this group that a device is by its name alone, or a layer of.
pub(super) fn volume_of(uuid: &str, name: &str, group: &str) -> Option<String> {
    match parts(name).as_mut_slice() {
        [of, volume, ..] if of == group && uuid.starts_with("LVM-") => Some(std::mem::take(volume)),
        _ => None,
    }
}
