use super::*;
use crate::lvm::{
    own::tests::{GROUP, device, disks},
    rows::rows,
};
use std::{fs, os::unix::fs::symlink};

/// Report of LVM 2.03.16 about a thin pool whose data are a RAID, with shortened UUIDs.
const REPORT: &str = r#"{"report":[{"lv":[
{"vg_uuid":"GROUP","lv_uuid":"01","lv_name":"flexvol-1","lv_parent":"","pool_lv":"tp0"},
{"vg_uuid":"GROUP","lv_uuid":"02","lv_name":"other","lv_parent":"","pool_lv":""},
{"vg_uuid":"GROUP","lv_uuid":"03","lv_name":"[lvol0_pmspare]","lv_parent":"","pool_lv":""},
{"vg_uuid":"GROUP","lv_uuid":"04","lv_name":"tp0","lv_parent":"","pool_lv":""},
{"vg_uuid":"GROUP","lv_uuid":"05","lv_name":"[tp0_tdata]","lv_parent":"tp0","pool_lv":""},
{"vg_uuid":"GROUP","lv_uuid":"06","lv_name":"[tp0_tdata_rimage_0]","lv_parent":"tp0_tdata","pool_lv":""},
{"vg_uuid":"GROUP","lv_uuid":"07","lv_name":"[tp0_tmeta]","lv_parent":"tp0","pool_lv":""},
{"vg_uuid":"GROUP","lv_uuid":"08","lv_name":"tp0_other","lv_parent":"","pool_lv":""}]}]}"#;

fn group() -> Vec<PartRow> {
    let long = |short: &str| format!("\"lv_uuid\":\"{}{short}\"", "0".repeat(30));
    let mut json = REPORT.replace("GROUP", GROUP);
    for number in 1..=8 {
        let short = format!("{number:02}");
        json = json.replace(&format!("\"lv_uuid\":\"{short}\""), &long(&short));
    }
    rows(json.as_bytes()).unwrap()
}

/// Device-mapper UUID of a volume in the report.
fn uuid(number: u32) -> String {
    format!("LVM-{GROUP}{number:032}")
}

fn about<'a>(uuid: Option<&'a str>, thin_pool: Option<&'a str>) -> Changed<'a> {
    Changed {
        group: "vg0",
        volume: "flexvol-1",
        uuid,
        thin_pool,
    }
}

#[test]
fn a_name_is_that_of_one_volume_of_one_group() {
    for (uuid, name, group, volume) in [
        ("LVM-x", "vg0-flexvol--1", "vg0", Some("flexvol-1")),
        ("LVM-x", "vg0-flexvol--1", "vg", None),
        ("CRYPT-x", "vg0-flexvol--1", "vg0", None),
        ("LVM-x", "vg0-flexvol--1-real", "vg0", Some("flexvol-1")),
    ] {
        let found = volume_of(uuid, name, group);
        assert_eq!(found.as_deref(), volume, "{uuid} {name} {group}");
    }
}

#[test]
fn a_change_is_about_a_volume_its_thin_pool_and_their_parts() {
    let first = uuid(1);
    let rows = group();
    let names = |changed: &Changed<'_>, rows: &[PartRow]| {
        let mut names: Vec<_> = changed
            .with_parts(rows)
            .into_iter()
            .map(|part| part.name)
            .collect();
        names.sort();
        names.dedup();
        names
    };
    let all = [
        "flexvol-1",
        "tp0",
        "tp0_tdata",
        "tp0_tdata_rimage_0",
        "tp0_tmeta",
    ];
    // A volume to be created, an existing one, and one being renamed.
    assert_eq!(names(&about(None, Some("tp0")), &rows[1..]), all);
    assert_eq!(names(&about(Some(&first), None), &rows), all);
    let renamed = Changed {
        volume: "new",
        ..about(Some(&first), None)
    };
    assert_eq!(
        names(&renamed, &rows),
        [&all[..1], &["new"], &all[1..]].concat()
    );
    assert_eq!(names(&about(None, None), &[]), all[..1]);
}

/// A fake sysfs. A device below another has that one as a holder.
struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Node {
        let node = Node(tempfile::tempdir().unwrap());
        for (minor, disk) in [(0, "sda"), (1, "sdb")] {
            device(node.0.path(), disk, minor, "", &[]);
        }
        node
    }

    fn make(&self, name: &str, uuid: &str, below: &[&str]) {
        let root = self.0.path();
        let minor = 10 + u32::try_from(fs::read_dir(root).unwrap().count()).unwrap();
        device(root, name, minor, uuid, below);
        for other in below {
            let holders = root.join(other).join("holders");
            if root.join(other).exists() {
                fs::create_dir_all(&holders).unwrap();
                symlink(root.join(name), holders.join(name)).unwrap();
            }
        }
    }

    /// Names and owners of the devices that a change runs into.
    fn conflicts(&self, disks: &Disks, changed: &Changed<'_>) -> Vec<(String, DeviceOwner)> {
        let says_so = |uuid: &str, name: &str| changed.may_conflict(disks, uuid, name);
        let found = disks.strangers(self.0.path(), says_so).unwrap();
        let found = disks.conflicts(found, changed, &group()).unwrap();
        let mut found: Vec<_> = found.into_iter().map(|it| (it.name, it.owner)).collect();
        found.sort();
        found
    }
}

#[test]
fn a_change_comes_upon_its_own_volume_and_upon_what_that_lies_on() {
    let node = Node::new();
    let (first, other) = (uuid(1), uuid(2));
    for (name, uuid, on) in [
        // Irrelevant: devices of a copy of the group, another volume of the driver, another group, and parts of these.
        ("copy-data", other.as_str(), "sdb"),
        ("copy-data_rimage_0", &uuid(30), "sdb"),
        ("vg0-data", "LVM-other", "sdb"),
        ("vg0-data_tdata", "LVM-other", "sdb"),
        ("vg0-lost_rimage_0", &uuid(31), "away"),
        ("vg0-own_tdata", &other, "sda"),
        ("evil-x", &first, "sdb"),
        ("vg0-flexvol--1", "LVM-other", "sdb"),
        ("evil-y", &uuid(5), "sdb"),
        ("evil-x-tpool", &format!("{}-tpool", uuid(4)), "sdb"),
        // Another group, and so in use under these names in the kernel.
        ("vg0-tp0_tmeta", "LVM-other", "sdb"),
        ("vg0-tp0-tpool", "LVM-other-tpool", "sdb"),
        ("vg0-tp0", "LVM-other", "away"),
    ] {
        node.make(name, uuid, &[on]);
    }
    let changed = about(Some(&first), Some("tp0"));
    let each = |ours: &DeviceOwner| {
        let theirs = DeviceOwner::Foreign("sdb".to_owned());
        [
            ("evil-x", ours),
            ("evil-x-tpool", ours),
            ("evil-y", ours),
            ("vg0-flexvol--1", &theirs),
            ("vg0-tp0", &DeviceOwner::Gone("away".to_owned())),
            ("vg0-tp0-tpool", &theirs),
            ("vg0-tp0_tmeta", &theirs),
        ]
        .map(|(name, owner)| (name.to_owned(), owner.clone()))
    };
    let mut disks = disks();
    assert_eq!(
        node.conflicts(&disks, &changed),
        each(&DeviceOwner::Foreign("sdb".to_owned()))
    );
    // A UUID of another group is certain even then.
    disks.complete = false;
    assert_eq!(
        node.conflicts(&disks, &changed),
        each(&DeviceOwner::Unknown("sdb".to_owned()))
    );
}

#[test]
fn a_thin_pool_is_come_upon_that_has_the_uuid_and_the_name_of_ours() {
    let node = Node::new();
    node.make("vg0-tp0", &uuid(32), &["sdb"]);
    node.make("vg0-other", &uuid(33), &["sdb"]);
    let theirs = DeviceOwner::Foreign("sdb".to_owned());
    assert_eq!(
        node.conflicts(&disks(), &about(Some(&uuid(1)), Some("tp0"))),
        [("vg0-tp0".to_owned(), theirs)]
    );
}

#[test]
fn a_lost_leg_is_in_nobodys_way_while_the_other_is_there() {
    let first = uuid(1);
    let changed = about(Some(&first), None);
    let mut disks = disks();
    for (complete, on) in [(true, "away"), (false, "away"), (false, "sdb")] {
        disks.complete = complete;
        let node = Node::new();
        node.make("vg0-tp0_tdata_rimage_0", &uuid(6), &[on]);
        node.make("vg0-tp0_tdata_rimage_1", &uuid(40), &["sda"]);
        let legs = ["vg0-tp0_tdata_rimage_0", "vg0-tp0_tdata_rimage_1"];
        node.make("vg0-tp0_tdata", &uuid(5), &legs);
        assert_eq!(node.conflicts(&disks, &changed), [], "{complete} {on}");
    }
}

#[test]
fn what_lies_on_a_disk_that_has_gone_is_in_the_way_with_all_that_is_on_it() {
    let node = Node::new();
    let first = uuid(1);
    node.make("vg0-tp0_tdata", &uuid(5), &["away"]);
    node.make("vg0-tp0_tmeta", &uuid(7), &["sda"]);
    let parts = ["vg0-tp0_tdata", "vg0-tp0_tmeta"];
    node.make("vg0-tp0-tpool", &format!("{}-tpool", uuid(4)), &parts);
    node.make("vg0-flexvol--1", &first, &["vg0-tp0-tpool"]);
    let changed = about(Some(&first), None);
    let names = |disks: &Disks| {
        let found = node.conflicts(disks, &changed).into_iter();
        found.map(|(name, _)| name).collect::<Vec<_>>()
    };
    let mut disks = disks();
    assert_eq!(
        names(&disks),
        ["vg0-flexvol--1", "vg0-tp0-tpool", "vg0-tp0_tdata"]
    );
    // While the disk is missing, the volumes work with the other one.
    disks.complete = false;
    assert_eq!(names(&disks), [""; 0]);
}
