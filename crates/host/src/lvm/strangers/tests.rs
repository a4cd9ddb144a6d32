use super::*;
use crate::lvm::own::tests::{GROUP, VOLUME, device, disks};

#[test]
fn a_name_is_that_of_one_volume_of_one_group() {
    for (uuid, name, group, volume) in [
        ("LVM-x", "vg0-flexvol--1", "vg0", Some("flexvol-1")),
        ("LVM-x", "vg0-flexvol--1", "vg", None),
        ("CRYPT-x", "vg0-flexvol--1", "vg0", None),
        ("LVM-x", "vg0-flexvol--1-real", "vg0", None),
    ] {
        let found = volume_of(uuid, name, group);
        assert_eq!(found.as_deref(), volume, "{uuid} {name} {group}");
    }
}

#[test]
fn a_change_comes_upon_its_own_volume_and_upon_what_volumes_lie_on() {
    let root = tempfile::tempdir().unwrap();
    let changed = format!("LVM-{GROUP}{VOLUME}");
    let other = format!("LVM-{GROUP}{}", "0".repeat(32));
    for (minor, disk) in [(0, "sda"), (1, "sdb")] {
        device(root.path(), disk, minor, "", &[]);
    }
    for (minor, name, uuid, on) in [
        // Of a copy of the group: of nobody's concern, as are another volume of ours and another group's.
        (10, "copy-data", other.as_str(), "sdb"),
        (11, "copy-flexvol--2", &other, "sdb"),
        (12, "vg0-data", "LVM-other", "sdb"),
        (13, "vg0-own_tdata", &other, "sda"),
        (14, "vg0-lost_rimage_0", &other, "away"),
        (15, "evil-x", &changed, "sdb"),
        (16, "vg0-flexvol--1", "LVM-other", "sdb"),
        (17, "evil-x_tdata", &other, "sdb"),
        (18, "evil-x-tpool", &format!("{other}-tpool"), "sdb"),
    ] {
        device(root.path(), name, minor, uuid, &[on]);
    }
    let about = Changed {
        group: "vg0",
        volume: "flexvol-1",
        uuid: Some(&changed),
    };
    let mut disks = disks();
    let found = |disks: &Disks| {
        let found = disks.in_the_way(root.path(), &about).unwrap();
        let mut found: Vec<_> = found
            .into_iter()
            .map(|found| (found.name, found.whose))
            .collect();
        found.sort();
        found
    };
    let each = |whose: Whose| {
        let names = ["evil-x", "evil-x-tpool", "evil-x_tdata", "vg0-flexvol--1"];
        names.map(|name| (name.to_owned(), whose.clone()))
    };
    assert_eq!(found(&disks), each(Whose::Foreign("sdb".to_owned())));
    disks.complete = false;
    assert_eq!(found(&disks), each(Whose::Unknown("sdb".to_owned())));
}
