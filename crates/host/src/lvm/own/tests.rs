use super::*;

pub(in crate::lvm) const GROUP: &str = "vNUQTT3rQ6iGLe1ZfO1DAeSU1dB4IxBR";
const VOLUME: &str = "M5QkWABuaPdCA341znb2YoEerhS0LwzL";

/// Creates a device in a fake sysfs, on top of other devices.
pub(in crate::lvm) fn device(root: &Path, name: &str, minor: u32, uuid: &str, below: &[&str]) {
    let dir = root.join(name);
    fs::create_dir_all(dir.join("slaves")).unwrap();
    fs::write(dir.join("dev"), format!("8:{minor}\n")).unwrap();
    fs::write(dir.join("size"), "8\n").unwrap();
    if !uuid.is_empty() {
        fs::create_dir(dir.join("dm")).unwrap();
        fs::write(dir.join("dm/uuid"), format!("{uuid}\n")).unwrap();
        fs::write(dir.join("dm/name"), format!("{name}\n")).unwrap();
    }
    for other in below {
        let link = dir.join("slaves").join(other);
        std::os::unix::fs::symlink(root.join(other), link).unwrap();
    }
}

#[test]
fn a_device_is_the_groups_if_all_below_it_is() {
    let root = tempfile::tempdir().unwrap();
    let make = |name: &str, minor, uuid: &str, below: &[&str]| {
        device(root.path(), name, minor, uuid, below);
    };
    let whole = format!("LVM-{GROUP}{VOLUME}");
    let layer = format!("{whole}-tpool");
    for (minor, disk) in [(0, "sda"), (1, "sdb"), (2, "path")] {
        make(disk, minor, "", &[]);
    }
    make("vg0-tp0_tdata", 11, &whole, &["sda"]);
    make("vg0-tp0-tpool", 12, &layer, &["vg0-tp0_tdata"]);
    make("vg0-thin", 13, &whole, &["vg0-tp0-tpool"]);
    make("vg0-mixed", 14, &whole, &["sda", "sdb"]);
    make("vg0-early", 15, &whole, &["path"]);
    // A whole volume that a tenant uses as a raw disk, and a device that the tenant made on it.
    make("vg0-raw", 16, &whole, &["sda"]);
    make("evil-on_raw", 17, &whole, &["vg0-raw"]);
    make("other-hidden_tdata", 18, "LVM-other", &["sda"]);
    make("evil-hidden", 19, &whole, &["other-hidden_tdata"]);
    make("vg0-gone", 20, &whole, &["away"]);
    make("vg0-half", 26, &whole, &["away", "sda"]);
    make("vg0-empty", 21, &whole, &[]);
    make("vg0-new", 22, &whole, &[]);
    fs::write(root.path().join("vg0-new/size"), "0\n").unwrap();
    make(
        "vg0-r_rimage_1-missing_0_0",
        23,
        &format!("{whole}-missing_0_0"),
        &[],
    );
    make(
        "vg0-r_rimage_1",
        24,
        &whole,
        &["vg0-r_rimage_1-missing_0_0"],
    );
    make(
        "vg0-degraded",
        25,
        &whole,
        &["vg0-r_rimage_1", "vg0-tp0_tdata"],
    );
    make("vg0-forged_tdata", 27, &whole, &["sdb"]);
    make("vg0-part", 28, &whole, &["sda", "vg0-forged_tdata"]);
    // Cache volumes before LVM 2.03.06, and forged ones.
    make("vg0-fast", 29, &whole, &["sda"]);
    make("vg0-fast-_cdata", 30, &whole, &["vg0-fast"]);
    make("vg0-cached", 31, &whole, &["sda", "vg0-fast-_cdata"]);
    make("evil-fast", 32, &whole, &["vg0-raw"]);
    make("evil-fast-_cdata", 33, &whole, &["evil-fast"]);
    make("evil-cached", 34, &whole, &["evil-fast-_cdata"]);
    let data = format!("{whole}-cdata");
    make("evil-pool_cdata", 35, &data, &["vg0-raw"]);
    make("evil-pooled", 36, &whole, &["evil-pool_cdata"]);
    // LVM's `error` segment in place of a leg, and a leg whose disk is gone.
    make("vg0-m_rimage_0", 37, &whole, &["sda"]);
    make("vg0-m_rimage_1", 38, &whole, &[]);
    make("vg0-m_rimage_2", 39, &whole, &["away"]);
    let legs = ["vg0-m_rimage_0", "vg0-m_rimage_1", "vg0-m_rimage_2"];
    make("vg0-mirror", 40, &whole, &legs);
    make("vg0-dead", 41, &whole, &legs[1..2]);
    make("vg0-strange_rimage_1", 42, &whole, &["sdb"]);
    make(
        "vg0-strange",
        43,
        &whole,
        &["vg0-m_rimage_0", "vg0-strange_rimage_1"],
    );
    let mut disks = disks();
    let foreign = |on: &str| DeviceOwner::Foreign(on.to_owned());
    for (name, owner) in [
        ("vg0-thin", DeviceOwner::Own),
        ("vg0-early", DeviceOwner::Own),
        ("vg0-new", DeviceOwner::Own),
        ("vg0-degraded", DeviceOwner::Own),
        ("vg0-mixed", foreign("sdb")),
        ("vg0-part", foreign("sdb")),
        ("vg0-strange", foreign("sdb")),
        ("vg0-cached", DeviceOwner::Own),
        ("evil-cached", foreign("vg0-raw")),
        ("evil-pooled", foreign("vg0-raw")),
        ("evil-on_raw", foreign("vg0-raw")),
        ("evil-hidden", foreign("other-hidden_tdata")),
        ("vg0-gone", DeviceOwner::Gone("away".to_owned())),
        ("vg0-half", DeviceOwner::Gone("away".to_owned())),
        ("vg0-mirror", DeviceOwner::Own),
        ("vg0-dead", DeviceOwner::Gone("vg0-m_rimage_1".to_owned())),
        ("vg0-empty", DeviceOwner::Unknown("vg0-empty".to_owned())),
    ] {
        assert_eq!(
            disks.judge(&root.path().join(name)).unwrap(),
            owner,
            "{name}"
        );
    }
    // If a disk is missing, the owner of another disk is unknown, and so is that of a device partly on it.
    disks.complete = false;
    for name in ["vg0-mixed", "vg0-forged_tdata", "vg0-part"] {
        let owner = disks.judge(&root.path().join(name)).unwrap();
        assert_eq!(owner, DeviceOwner::Unknown("sdb".to_owned()), "{name}");
    }
    // A leg on the unknown disk does not affect the others.
    for name in ["vg0-strange", "vg0-half"] {
        let owner = disks.judge(&root.path().join(name)).unwrap();
        assert_eq!(owner, DeviceOwner::Own, "{name}");
    }
}

/// A group on the disks 8:0 and 8:2.
pub(in crate::lvm) fn disks() -> Disks {
    Disks {
        prefix: format!("LVM-{GROUP}"),
        numbers: Vec::new(),
        paths: Vec::new(),
        uuids: Vec::new(),
        own: [0, 2].map(|minor| DeviceNumber { major: 8, minor }).into(),
        away: 0,
        complete: true,
    }
}

#[test]
fn a_multipath_disk_and_its_partitions_have_the_paths_numbers() {
    let root = tempfile::tempdir().unwrap();
    for (minor, path) in [(0, "sda"), (16, "sdb")] {
        device(root.path(), path, minor, "", &[]);
        for part in [1, 12] {
            let dir = root.path().join(path).join(format!("{path}{part}"));
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("partition"), format!("{part}\n")).unwrap();
            fs::write(dir.join("dev"), format!("8:{}\n", minor + part)).unwrap();
        }
    }
    device(root.path(), "mpatha", 40, "mpath-0", &["sda", "sdb"]);
    for (name, uuid, on, paths) in [
        ("mpatha1", "part1-mpath-0", "mpatha", &[1, 17][..]),
        ("mpatha12", "part12-mpath-0", "mpatha", &[12, 28]),
        ("mpatha3", "part3-mpath-0", "mpatha", &[]),
        ("crypt", "CRYPT-0", "sda", &[]),
        ("again", "mpath-1", "sdb", &[16]),
    ] {
        device(root.path(), name, 50, uuid, &[on]);
        let mut found = paths_of(&root.path().join(name)).unwrap();
        found.sort();
        let expected: Vec<_> = paths
            .iter()
            .map(|&minor| DeviceNumber { major: 8, minor })
            .collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn a_change_needs_every_disk_where_it_was_found() {
    let place = tempfile::tempdir().unwrap();
    let link = place.path().join("disk");
    let lead_to = |device: &str| {
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(device, &link).unwrap();
    };
    lead_to("/dev/null");
    let path = link.display().to_string();
    let found = Disks::new(GROUP, vec![(path.clone(), false)]);
    found.expect_in_place().unwrap();
    let refused = || found.expect_in_place().unwrap_err();
    lead_to("/dev/zero");
    assert_eq!(refused().kind(), ErrorKind::Busy, "another disk");
    fs::remove_file(&link).unwrap();
    assert_eq!(refused().kind(), ErrorKind::Busy, "no disk");

    let added = Disks::new(
        GROUP,
        ["/dev/zero", "/dev/full"]
            .map(|path| (path.to_owned(), false))
            .to_vec(),
    );
    added.expect_same(&added.clone()).unwrap();
    let refused = found.expect_same(&added).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    // Only a mark that came after the report may be taken back.
    let away = Disks::new(GROUP, vec![(path, true)]).with_uuids(vec!["a".to_owned()]);
    assert!(!away.is_newly_missing("a") && away.is_newly_missing("b"));
}
