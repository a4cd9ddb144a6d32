//! A driver without its configuration knows neither its pools nor how long it keeps deleted volumes.

use crate::sandbox;
use flexvol_testing::{Driver, Need, PersistentVolume, Points, tests};
use std::{fs, path::Path, process::Command};

tests! {
    "while its configuration is lost a driver takes no volume for gone, and makes none", &[Need::Root]
        => not_gone;
}

/// Runs a driver in a mount namespace in which pool $0 is at the default path, and of which the node remembers nothing.
const BY_DEFAULT: &str = "mount -t tmpfs none /var/lib
    mkdir -p /etc/flexvol
    mount -t tmpfs none /etc/flexvol
    mkdir -p /var/lib/flexvol/pools/default
    mount --bind \"$0\" /var/lib/flexvol/pools/default
    exec \"$@\"";
/// Runs a driver with this pool at the default path, and returns its output.
pub(super) fn by_default(driver: &Driver, pool: &Path, arguments: &[&str]) -> String {
    let output = Command::new("unshare")
        .args(["-m", "sh", "-ec", BY_DEFAULT])
        .arg(pool)
        .arg(driver.executable())
        .args(arguments)
        .output()
        .unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

/// The default path has a pool of the first installation, but the volumes are in another pool.
fn not_gone(points: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("example.com/loop", false, "");
    let asked = serde_json::json!({
        "kubernetes.io/pvOrVolumeName": "pv",
        "kubernetes.io/pvc.namespace": "default",
        "requestBytes": (320 << 20).to_string(),
        "fsType": "ext4",
    });
    let made = driver.call(&["provision", &asked.to_string()]).success();
    let volume = PersistentVolume::from_reply("pv", "ext4", &made);
    let name = "kubernetes.io/pvOrVolumeName";
    let forms = [
        serde_json::json!({ name: "pv", "handle": volume.handle(), "pool": "default" }),
        serde_json::json!({ name: "pv", "handle": volume.handle() }),
        serde_json::json!({ name: "pv", "pool": "default" }),
        serde_json::json!({ name: "pv" }),
        // The caller missed the reply of `provision`.
        serde_json::json!({ name: "pv", "kubernetes.io/pvc.namespace": "default" }),
    ];
    let default = sandbox.path("default");
    sandbox.make_pool(&default);
    let mut other = asked.clone();
    other[name] = "other".into();
    let (asked, other) = (asked.to_string(), other.to_string());
    let image = default.join("image");
    fs::File::create(&image)
        .unwrap()
        .set_len(320 << 20)
        .unwrap();
    let image = image.to_str().unwrap();
    // What makes a volume in a pool, or a claim choose this node for one.
    let makes = [
        vec!["provision", &asked],
        vec!["provision", &other],
        vec!["capacity", r#"{"pool":"default"}"#],
        vec!["capacity", "{}"],
        vec!["create", "other", "--size", "320Mi"],
        vec!["adopt", image, "--name", "other", "--format"],
    ];
    let configuration = driver.executable().with_file_name(".loop.toml");
    let text = fs::read_to_string(&configuration).unwrap();
    for left in [Some(""), None] {
        match left {
            Some(text) => fs::write(&configuration, text).unwrap(),
            None => fs::remove_file(&configuration).unwrap(),
        }
        for form in &forms {
            let told = by_default(&driver, &default, &["delete", &form.to_string()]);
            assert!(told.contains("Failure"), "{form}: {told}");
            assert!(told.contains("configuration is missing"), "{told}");
            assert!(volume.image(&sandbox).exists());
            points.add(1);
        }
        for arguments in &makes {
            let told = by_default(&driver, &default, arguments);
            assert!(
                told.contains("configuration is missing"),
                "{arguments:?}: {told}"
            );
            assert!(!told.contains("Success"), "{arguments:?}: {told}");
            if told.contains("errorClass") {
                assert!(told.contains("retryable"), "{arguments:?}: {told}");
            }
            let made = fs::read_dir(default.join("volumes")).unwrap().count();
            assert_eq!(made, 0, "{arguments:?}");
            points.add(1);
        }
    }
    fs::write(&configuration, text).unwrap();
    // With the configuration, deleting works and is idempotent.
    for _ in 0..2 {
        driver.call(&["delete", &forms[0].to_string()]).success();
        assert!(!volume.image(&sandbox).exists());
        points.add(1);
    }
}
