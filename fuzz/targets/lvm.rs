//! LVM's report about a group, or about the thin pool whose name precedes it, terminated by NUL: each of its volumes
//! must have the values of its row, and sizes must be whole extents.
#![no_main]

use flexvol_fuzz::within;
use flexvol_host::{
    Reserve,
    lvm::{GroupOrThinPool, Layout, Rules, View, name_of, parse, volume_in},
};
use flexvol_sdk::{Bytes, ErrorKind};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(2, |&byte| byte == 0);
    let (first, rest) = (parts.next().unwrap_or_default(), parts.next());
    let (name, json) = match rest {
        Some(json) => (str::from_utf8(first).ok(), json),
        None => (None, first),
    };
    let view = match within((16 << 10) + 96 * data.len(), || parse(json, name)) {
        Ok(Some(view)) => view,
        Ok(None) => return,
        Err(error) => return assert_eq!(error.kind(), ErrorKind::Storage),
    };
    if let Some(rows) = rows(json) {
        is_what_was_reported(&view, &rows, name);
    }
    if view.id().is_ok() {
        let pools = view
            .tags
            .iter()
            .filter_map(|tag| tag.strip_prefix("flexvol-pool="));
        let [tag] = pools.collect::<Vec<_>>()[..] else {
            panic!("a pool has one tag: {:?}", view.tags);
        };
        let key = tag.strip_prefix("1:key=").expect("a key");
        let (key, group) = key.split_once(":group=").expect("a group");
        assert!(key.len() == 32 && group == view.uuid);
    }
    for volume in &view.volumes {
        let id = volume_in(&volume.name);
        assert!(id.is_none_or(|id| name_of(&id) == volume.name));
        assert!(volume.uuid.starts_with("LVM-") && !volume.uuid[4..].contains('-'));
        assert!(
            volume
                .tags
                .iter()
                .all(|tag| !tag.is_empty() && !tag.contains(','))
        );
        fits(volume.size, &view, name);
    }
});

/// Every row of a report whose rows are objects.
fn rows(json: &[u8]) -> Option<Vec<Map<String, Value>>> {
    let json: Value = serde_json::from_slice(json).ok()?;
    let mut all = Vec::new();
    for report in json.get("report")?.as_array()? {
        let keys = ["lv", "vg", "pv", "seg", "rows"];
        let rows = keys.iter().find_map(|key| report.as_object()?.get(*key));
        for row in rows?.as_array()? {
            all.push(row.as_object()?.clone());
        }
    }
    Some(all)
}

fn is_what_was_reported(view: &View, rows: &[Map<String, Value>], thin_pool: Option<&str>) {
    let text = |row: &Map<String, Value>, key| row[key].as_str().expect("a text").to_owned();
    let size = |row: &Map<String, Value>, key| text(row, key).parse().ok().map(Bytes);
    let is_thin =
        |row: &Map<String, Value>| text(row, "lv_layout").split(',').any(|it| it == "thin");
    let of_place = |row: &&Map<String, Value>| match thin_pool {
        Some(pool) => row["pool_lv"] == pool,
        None => row["pool_lv"] == "" || !is_thin(row),
    };
    let there: Vec<_> = rows.iter().filter(of_place).collect();
    assert_eq!(there.len(), view.volumes.len());
    for (row, volume) in there.into_iter().zip(&view.volumes) {
        assert_eq!(text(row, "lv_name"), volume.name);
        assert_eq!(size(row, "lv_size"), Some(volume.size));
        let tags = text(row, "lv_tags").replace(',', "");
        assert_eq!(tags, volume.tags.concat());
    }
    let of_pool = |row: &&Map<String, Value>| thin_pool.is_none_or(|name| row["lv_name"] == name);
    let told = rows.iter().find(of_pool).expect("the row of the place");
    let whole = if thin_pool.is_some() {
        "lv_size"
    } else {
        "vg_size"
    };
    assert_eq!(size(told, whole), Some(view.size));
    assert_eq!(size(told, "vg_extent_size"), Some(view.extent));
    assert_eq!(size(told, "vg_free"), Some(view.free));
}

/// Checks that a rounded size is not smaller, and is the same number of whole extents on each disk.
fn fits(size: Bytes, view: &View, thin_pool: Option<&str>) {
    let stripes = 3;
    let rules = Rules {
        layout: Layout {
            stripes,
            stripe_size: None,
        },
        reserve: Reserve::Percent(15),
        largest: None,
        keeps: false,
        overcommit: false,
    };
    let place = GroupOrThinPool {
        group: "vg".to_owned(),
        thin_pool: thin_pool.map(str::to_owned),
    };
    if let Ok(fitting) = place.fitting(size, view, &rules) {
        let disks = if thin_pool.is_some() { 1 } else { stripes };
        assert!(fitting >= size && fitting.0 % view.extent.0.saturating_mul(disks.into()) == 0);
    }
}
