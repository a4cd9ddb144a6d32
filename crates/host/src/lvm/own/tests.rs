use super::*;

const GROUP: &str = "vNUQTT3rQ6iGLe1ZfO1DAeSU1dB4IxBR";
const VOLUME: &str = "M5QkWABuaPdCA341znb2YoEerhS0LwzL";

/// A device as sysfs shows it, on others.
fn device(root: &Path, name: &str, minor: u32, uuid: &str, below: &[&str]) {
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
    // A volume of the group that a tenant has as his raw disk, and what he made of it.
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
    let mut disks = Disks {
        prefix: format!("LVM-{GROUP}"),
        paths: Vec::new(),
        own: [0, 2].map(|minor| DeviceNumber { major: 8, minor }).into(),
        complete: true,
    };
    let foreign = |on: &str| Whose::Foreign(on.to_owned());
    for (name, whose) in [
        ("vg0-thin", Whose::Own),
        ("vg0-early", Whose::Own),
        ("vg0-new", Whose::Own),
        ("vg0-degraded", Whose::Own),
        ("vg0-mixed", foreign("sdb")),
        ("evil-on_raw", foreign("vg0-raw")),
        ("evil-hidden", foreign("other-hidden_tdata")),
        ("vg0-gone", Whose::Unknown("away".to_owned())),
        ("vg0-half", Whose::Own),
        ("vg0-empty", Whose::Unknown("vg0-empty".to_owned())),
    ] {
        assert_eq!(
            disks.judge(&root.path().join(name)).unwrap(),
            whose,
            "{name}"
        );
    }
    disks.complete = false;
    let unknown = disks.judge(&root.path().join("vg0-mixed")).unwrap();
    assert_eq!(unknown, Whose::Unknown("sdb".to_owned()));
}

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
