//! The subject of a change: a volume, and the other logical volumes that LVM examines when it changes the volume.

use super::{
    mapping::{UUID_LENGTH, parts},
    own::{Disks, is_hidden},
    report::bare,
    rows::row,
};

/// Subject of a change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changed<'a> {
    pub(super) group: &'a str,
    pub(super) volume: &'a str,
    /// Device-mapper UUID of the volume, if it exists.
    pub(super) uuid: Option<&'a str>,
    /// Thin pool of the volume, if known.
    pub(super) thin_pool: Option<&'a str>,
}

impl Changed<'_> {
    /// Whether LVM may find a device in its way. Whole volumes that belong to the group by UUID and by name do not
    /// matter, except for the changed volume and its thin pool.
    pub(super) fn may_conflict(&self, disks: &Disks, uuid: &str, name: &str) -> bool {
        let by_uuid = disks.names(uuid);
        let by_name = volume_of(uuid, name, self.group);
        (by_uuid || by_name.is_some())
            && (by_uuid != by_name.is_some()
                || is_hidden(uuid, name)
                || self.uuid == Some(uuid)
                || by_name.as_deref() == Some(self.volume)
                || by_name.as_deref() == self.thin_pool)
    }

    /// Selects the volume, its thin pool, and the parts of both from all rows of the group.
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
        // The volume may not exist yet, or not have the name yet.
        parts.push(Part {
            name: self.volume.to_owned(),
            uuid: self.uuid.map(str::to_owned),
        });
        parts
    }
}

/// A logical volume that LVM examines when it changes another one.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) name: String,
    uuid: Option<String>,
}

impl Part {
    /// Whether a device has the UUID or the name of this logical volume, or of a layer of it.
    pub(super) fn is(&self, group: &str, uuid: &str, name: &str) -> bool {
        let by_uuid = uuid.get(..UUID_LENGTH);
        by_uuid.is_some_and(|volume| self.uuid.as_deref() == Some(volume))
            || volume_of(uuid, name, group).as_ref() == Some(&self.name)
    }
}

row! {
    /// One row of `lvs -a`: a logical volume, or a hidden part of one, whose name is in brackets.
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

    /// Name of the logical volume that this one is a part of, or empty.
    pub(super) fn parent(&self) -> &str {
        without_brackets(&self.lv_parent)
    }

    /// Name of its thin pool or cache pool, or empty.
    pub(super) fn pool(&self) -> &str {
        without_brackets(&self.pool_lv)
    }

    /// Device-mapper UUID of its device.
    pub(super) fn uuid(&self) -> String {
        format!("LVM-{}{}", bare(&self.vg_uuid), bare(&self.lv_uuid))
    }
}

fn without_brackets(name: &str) -> &str {
    name.trim_matches(['[', ']'])
}

/// Returns the volume of this group that a device, or a layer of a volume, belongs to by its name alone.
pub(super) fn volume_of(uuid: &str, name: &str, group: &str) -> Option<String> {
    match parts(name).as_mut_slice() {
        [of, volume, ..] if of == group && uuid.starts_with("LVM-") => Some(std::mem::take(volume)),
        _ => None,
    }
}
