//! LVM's reports as types.

#[cfg(test)]
mod tests;

use super::{
    metadata::Metadata,
    own::Disks,
    pool_tag::{is_of_group, is_of_pool},
    rows::{Columns, Reports, Row, row, rows, take},
    view::{LogicalVolume, View},
};
use crate::pool::PoolId;
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};

row! {
    /// One row of `lvs`.
    pub(super) struct VolumeRow {
        vg_uuid: String,
        vg_tags: String,
        vg_extent_size: u64,
        vg_size: u64,
        vg_free: u64,
        vg_mda_free: u64,
        vg_mda_size: u64,
        lv_name: String,
        lv_uuid: String,
        lv_size: u64,
        lv_tags: String,
        lv_layout: String,
        lv_role: String,
        pool_lv: String,
        seg_count: u64,
    }
}

row! {
    /// One row about a group, for a group without logical volumes.
    pub(super) struct GroupRow {
        vg_uuid: String,
        vg_tags: String,
        vg_extent_size: u64,
        vg_size: u64,
        vg_free: u64,
        vg_mda_free: u64,
        vg_mda_size: u64,
    }
}

impl From<GroupRow> for View {
    fn from(row: GroupRow) -> View {
        View {
            uuid: bare(&row.vg_uuid),
            tags: tags(&row.vg_tags),
            extent: Bytes(row.vg_extent_size),
            size: Bytes(row.vg_size),
            free: Bytes(row.vg_free),
            metadata: metadata(row.vg_mda_free, row.vg_mda_size),
            disks: Disks::default(),
            free_of_disks: Vec::new(),
            volumes: Vec::new(),
        }
    }
}

/// Converts the size of a metadata area. New metadata are written beside the current ones, so they can take at most
/// half of the area (`_vgname_from_mda` in LVM's lib/format_text/format-text.c).
fn metadata(free: u64, area: u64) -> Metadata {
    Metadata {
        size: Bytes(area / 2),
        free: Bytes(free),
    }
}

/// Builds the view of the group, or of `thin_pool` in it, from rows of `lvs`; `None` if there is no row for it.
pub(super) fn view(rows: Vec<VolumeRow>, thin_pool: Option<&str>) -> Option<View> {
    let mut view = {
        let row = match thin_pool {
            Some(name) => rows.iter().find(|row| row.lv_name == name)?,
            None => rows.first()?,
        };
        let (tagged, size) = match thin_pool {
            Some(_) => (&row.lv_tags, row.lv_size),
            None => (&row.vg_tags, row.vg_size),
        };
        View {
            uuid: bare(&row.vg_uuid),
            tags: tags(tagged),
            extent: Bytes(row.vg_extent_size),
            size: Bytes(size),
            free: Bytes(row.vg_free),
            metadata: metadata(row.vg_mda_free, row.vg_mda_size),
            disks: Disks::default(),
            free_of_disks: Vec::new(),
            volumes: Vec::new(),
        }
    };
    let of_place = rows.into_iter().filter(|row| match thin_pool {
        Some(pool) => row.pool_lv == pool,
        // Volumes with a cache have a pool, too: the cache pool (`lv_pool_lv` in LVM's lib/metadata/lv.c).
        None => row.pool_lv.is_empty() || !row.lv_layout.split(',').any(|it| it == "thin"),
    });
    view.volumes = of_place
        .map(|row| LogicalVolume {
            uuid: format!("LVM-{}{}", bare(&row.vg_uuid), bare(&row.lv_uuid)),
            name: row.lv_name,
            size: Bytes(row.lv_size),
            tags: tags(&row.lv_tags),
            // `thin,pool`, `public,origin,thickorigin`, `public,origin,extthinorigin`; thin
            // snapshots in the same pool are volumes of their own.
            segments: row.seg_count,
            is_removed_alone: !row.lv_layout.contains("pool")
                && !["thick", "extthin"]
                    .iter()
                    .any(|role| row.lv_role.contains(role)),
        })
        .collect();
    Some(view)
}

row! {
    /// One row of `lvs` about a thin pool. Some values come from the kernel, and exist only while the pool is active.
    pub(super) struct ThinPoolRow {
        pub(super) data_percent: String,
        pub(super) metadata_percent: String,
        pub(super) lv_when_full: String,
        pub(super) zero: String,
        pub(super) lv_health_status: String,
    }
}

row! {
    /// One row of `lvs` about a volume's device, with the kernel's answer: `open`, empty, or `unknown`.
    pub(super) struct OpenRow {
        pub(super) lv_device_open: String,
    }
}

/// One row of `vgs`, or of `lvs` for thin pools, with tags.
#[derive(Debug)]
pub(super) struct TagRow {
    vg_uuid: String,
    tags: String,
}

impl Row for TagRow {
    fn of(mut columns: Columns) -> Result<Self, String> {
        Ok(TagRow {
            vg_uuid: take(&mut columns, "vg_uuid")?,
            tags: take(&mut columns, "vg_tags").or_else(|_| take(&mut columns, "lv_tags"))?,
        })
    }
}

impl TagRow {
    /// Whether this is the pool with this id, in another group than the one with this UUID.
    pub(super) fn is_in_another_group(&self, group: &str, id: PoolId) -> bool {
        bare(&self.vg_uuid) != group && tags(&self.tags).iter().any(|it| is_of_pool(it, id))
    }

    /// Returns the group's UUID if it, or this thin pool in it, is a pool; only one of the `known` pools, if there are
    /// any.
    pub(super) fn group_of_pool(&self, known: &[PoolId]) -> Option<String> {
        let group = bare(&self.vg_uuid);
        let is_known = |tag: &str| known.is_empty() || known.iter().any(|id| is_of_pool(tag, *id));
        let mut tags = tags(&self.tags).into_iter();
        tags.any(|tag| is_of_group(&tag, &group) && is_known(&tag))
            .then_some(group)
    }
}

row! {
    /// One row of `vgs` for each disk of groups.
    pub(super) struct MemberRow {
        vg_uuid: String,
        pub(super) pv_name: String,
        pv_missing: String,
    }
}

impl MemberRow {
    /// Whether the disk is present and belongs to the group with this UUID.
    pub(super) fn is_of(&self, group: &str) -> bool {
        self.pv_missing.is_empty() && bare(&self.vg_uuid) == group
    }
}

row! {
    /// One row of `vgs` or `pvs`: the identity of a disk.
    pub(super) struct IdentityRow {
        pv_uuid: String,
    }
}

row! {
    /// One row of `vgs` for each disk of a group.
    pub(super) struct DiskRow {
        pub(super) pv_free: u64,
        pub(super) pv_name: String,
        pub(super) pv_allocatable: String,
        pub(super) pv_missing: String,
        pub(super) pv_uuid: String,
        vg_uuid: String,
    }
}

impl From<Vec<DiskRow>> for Disks {
    fn from(rows: Vec<DiskRow>) -> Self {
        let group = rows.first().map(|row| row.vg_uuid.clone());
        let uuids = rows.iter().map(|row| row.pv_uuid.clone()).collect();
        let disks = rows.into_iter();
        let disks = disks.map(|row| (row.pv_name, !row.pv_missing.is_empty()));
        Disks::new(&group.unwrap_or_default(), disks.collect()).with_uuids(uuids)
    }
}

row! {
    /// One row of `pvs` for each disk that LVM does not use because another disk has the same identity. The
    /// last two columns are for the selection.
    pub(super) struct CopyRow {
        pub(super) pv_name: String,
        vg_name: String,
        pv_duplicate: String,
    }
}

/// Parses the report that `lvm lvs --reportformat json` prints of a group or a thin pool.
///
/// # Errors
/// [`ErrorKind::Storage`] when the report is malformed.
pub fn parse(json: &[u8], thin_pool: Option<&str>) -> Result<Option<View>> {
    Ok(view(rows(json)?, thin_pool))
}

/// A group, its logical volumes and its disks, in one report (`fullreport`).
#[derive(Debug)]
pub(super) struct GroupReport {
    pub(super) vg: Vec<GroupRow>,
    pub(super) lv: Vec<VolumeRow>,
    pub(super) pv: Vec<DiskRow>,
}

impl GroupReport {
    /// Returns the arguments of the report; `selection` selects its logical volumes.
    pub(super) fn words(selection: Option<&str>) -> Vec<&str> {
        let mut words = vec!["--configreport", "lv", "-o", VolumeRow::FIELDS];
        words.extend(selection.into_iter().flat_map(|which| ["-S", which]));
        words.extend(["--configreport", "pv", "-o", DiskRow::FIELDS]);
        words.extend(["--configreport", "vg", "-o", GroupRow::FIELDS]);
        words.extend(NO_SEGMENTS);
        words.extend(NO_PIECES);
        words
    }

    /// Parses LVM's output.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`] when it contains several groups.
    pub(super) fn parse(json: &[u8]) -> Result<Self> {
        let mut reports = Reports::parse(json)?;
        let all = GroupReport {
            vg: reports.take("vg")?,
            lv: reports.take("lv")?,
            pv: reports.take("pv")?,
        };
        let mut groups = (all.vg.iter().map(|row| &row.vg_uuid))
            .chain(all.lv.iter().map(|row| &row.vg_uuid))
            .chain(all.pv.iter().map(|row| &row.vg_uuid));
        let first = groups.next();
        if groups.any(|group| Some(group) != first) {
            return Err(Error::new(
                ErrorKind::Storage,
                "the volume group's metadata are in doubt: lvm reports several groups of its name at once; detach the disks of the others, or give them other names with `vgrename` and their UUIDs",
            ));
        }
        Ok(all)
    }
}

/// Arguments that leave one of `fullreport`'s reports empty.
pub(super) const NO_GROUP: [&str; 6] = nothing("vg", "vg_name", "vg_name=\"-\"");
pub(super) const NO_VOLUMES: [&str; 6] = nothing("lv", "lv_name", "lv_name=\"-\"");
pub(super) const NO_DISKS: [&str; 6] = nothing("pv", "pv_name", "pv_name=\"-\"");
pub(super) const NO_SEGMENTS: [&str; 6] = nothing("seg", "lv_name", "lv_name=\"-\"");
pub(super) const NO_PIECES: [&str; 6] = nothing("pvseg", "pv_name", "pv_name=\"-\"");

const fn nothing(
    report: &'static str,
    field: &'static str,
    never: &'static str,
) -> [&'static str; 6] {
    ["--configreport", report, "-o", field, "-S", never]
}

fn tags(list: &str) -> Vec<String> {
    let tags = list.split(',').filter(|tag| !tag.is_empty());
    tags.map(str::to_owned).collect()
}

pub(super) fn bare(uuid: &str) -> String {
    uuid.replace('-', "")
}
