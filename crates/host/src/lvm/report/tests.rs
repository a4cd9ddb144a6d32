use super::*;
use crate::lvm::key::PoolKey;

const GROUP: &str = r#""vg_uuid":"vNUQTT-3rQ6-iGLe-1ZfO-1DAe-SU1d-B4IxBR", "vg_tags":"a,flexvol-pool=1:key=00112233445566778899aabbccddeeff:group=vNUQTT3rQ6iGLe1ZfO1DAeSU1dB4IxBR", "vg_extent_size":"4194304", "vg_size":"2139095040", "vg_free":"2101346304", "vg_mda_free":"391168", "vg_mda_size":"1044480""#;

fn report(volumes: &[&str]) -> Vec<u8> {
    let rows: Vec<_> = volumes
        .iter()
        .map(|volume| format!("{{{GROUP}, {volume}}}"))
        .collect();
    format!(r#"{{"report": [{{"lv": [{}]}}]}}"#, rows.join(",")).into_bytes()
}

const LINEAR: &str = r#""lv_name":"flexvol-01", "lv_uuid":"M5QkWA-BuaP-dCA3-41zn-b2Yo-Eerh-S0LwzL", "lv_size":"37748736", "lv_tags":"x,y=1:z", "lv_layout":"linear", "lv_role":"public", "pool_lv":"", "seg_count":"2""#;
const POOL: &str = r#""lv_name":"tp0", "lv_uuid":"xFUHYw-9LXF-ACTt-hkEQ-avpp-1BzF-l5BzcP", "lv_size":"104857600", "lv_tags":"flexvol-pool=1:key=ffeeddccbbaa99887766554433221100:group=vNUQTT3rQ6iGLe1ZfO1DAeSU1dB4IxBR", "lv_layout":"thin,pool", "lv_role":"private", "pool_lv":"", "seg_count":"1""#;
const THIN: &str = r#""lv_name":"flexvol-02", "lv_uuid":"I3686y-gAOD-Aj7e-YtAn-7Vbo-Yz6z-Jnqms0", "lv_size":"54525952", "lv_tags":"", "lv_layout":"thin,sparse", "lv_role":"public", "pool_lv":"tp0", "seg_count":"1""#;

#[test]
fn a_group_and_its_thin_pool_are_two_places() {
    let json = report(&[LINEAR, POOL, THIN]);
    let group = parse(&json, None).unwrap().unwrap();
    let key = |text| PoolKey::parse(text).unwrap();
    let of_group = key("00112233445566778899aabbccddeeff");
    assert_eq!(group.key().unwrap(), of_group);
    assert_eq!(
        (group.size, group.free),
        (Bytes(2_139_095_040), Bytes(2_101_346_304))
    );
    assert_eq!(group.metadata.taken().to_string(), "25.10 %");
    let names: Vec<_> = group.volumes.iter().map(|volume| &volume.name).collect();
    assert_eq!(names, ["flexvol-01", "tp0"]);
    let linear = group.volume("flexvol-01").unwrap();
    assert_eq!(
        linear.uuid,
        "LVM-vNUQTT3rQ6iGLe1ZfO1DAeSU1dB4IxBRM5QkWABuaPdCA341znb2YoEerhS0LwzL"
    );
    assert_eq!(linear.tags, ["x", "y=1:z"]);
    assert_eq!(linear.segments, 2);
    assert!(linear.is_removed_alone && !group.volume("tp0").unwrap().is_removed_alone);

    let thin = parse(&json, Some("tp0")).unwrap().unwrap();
    let of_thin_pool = key("ffeeddccbbaa99887766554433221100");
    assert_eq!(thin.key().unwrap(), of_thin_pool);
    assert_eq!(thin.size, Bytes(104_857_600));
    let names: Vec<_> = thin.volumes.iter().map(|volume| &volume.name).collect();
    assert_eq!(names, ["flexvol-02"]);
    assert_eq!(thin.volumes[0].tags, Vec::<String>::new());
}

#[test]
fn what_would_take_others_with_it_is_not_plain() {
    for (role, plain) in [
        ("public", true),
        ("public,origin,thinorigin,multithinorigin", true),
        ("public,snapshot,thinsnapshot", true),
        ("public,origin,thickorigin", false),
        ("public,snapshot,thicksnapshot", false),
        ("public,origin,extthinorigin", false),
    ] {
        let volume = LINEAR.replace("\"public\"", &format!("{role:?}"));
        let group = parse(&report(&[&volume]), None).unwrap().unwrap();
        assert_eq!(group.volumes[0].is_removed_alone, plain, "{role}");
    }
}

#[test]
fn a_volume_that_was_given_a_cache_is_still_one() {
    let cached = LINEAR
        .replace("\"linear\"", "\"cache\"")
        .replace("\"pool_lv\":\"\"", "\"pool_lv\":\"[fast_cpool]\"");
    let group = parse(&report(&[&cached, POOL, THIN]), None)
        .unwrap()
        .unwrap();
    let names: Vec<_> = group.volumes.iter().map(|volume| &volume.name).collect();
    assert_eq!(names, ["flexvol-01", "tp0"]);
    assert!(group.volumes[0].is_removed_alone);
}

#[test]
fn a_place_that_no_row_tells_of_is_not_known() {
    assert_eq!(parse(&report(&[]), None).unwrap(), None);
    assert_eq!(parse(&report(&[LINEAR]), Some("tp0")).unwrap(), None);
}

#[test]
fn what_is_no_report_is_refused() {
    let no_number = LINEAR.replace("37748736", "36.00m");
    for json in ["", "{}", r#"{"report":[{"lv":[{}]}]}"#, "{\"report\":"] {
        assert!(parse(json.as_bytes(), None).is_err(), "{json}");
    }
    assert!(parse(&report(&[&no_number]), None).is_err());
}

#[test]
fn rows_of_two_groups_are_of_neither() {
    let disk = r#""pv_free":"0", "pv_name":"/dev/vda", "pv_allocatable":"allocatable", "pv_missing":"", "pv_uuid":"dvYEHR-6UcM-mz23-AOA3-Bx2b-WbWh-EQ2fKJ", "vg_uuid":"vNUQTT-3rQ6-iGLe-1ZfO-1DAe-SU1d-B4IxBR""#;
    let other = |row: &str| row.replace("vNUQTT-3rQ6", "AAAAAA-3rQ6");
    let of = |group: &str, disk: &str| {
        let volume = format!("{{{GROUP}, {LINEAR}}}");
        format!(
            r#"{{"report": [{{"vg": [{{{group}}}], "lv": [{volume}]}}, {{"pv": [{{{disk}}}]}}]}}"#
        )
    };
    let found = GroupReport::parse(of(GROUP, disk).as_bytes()).unwrap();
    assert_eq!((found.vg.len(), found.lv.len(), found.pv.len()), (1, 1, 1));
    for json in [of(&other(GROUP), disk), of(GROUP, &other(disk))] {
        let error = GroupReport::parse(json.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Storage);
        assert!(error.to_string().contains("in doubt"), "{error}");
    }
}
