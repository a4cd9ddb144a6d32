//! A refused `undelete` changes nothing, and what it advises works.

use crate::{
    by_hand::{error_of, json_of, persistent_volume},
    sandbox,
};
use flexvol_testing::{Need, PersistentVolume, Pod, Points, tests};
use std::fs;

tests! {
    "an undelete that is refused leaves the name of the volume to others, and adopt takes the volume over", &[Need::Root, Need::Tool("mkfs.ext4", "e2fsprogs")]
        => no_name;
}

/// The image was moved to another pool, where it counts as a copy.
fn no_name(points: &Points) {
    let sandbox = sandbox();
    let pools = ["a", "b"].map(|name| sandbox.disk().join(name));
    let mut text = "backend = \"loop\"\n".to_owned();
    for (name, path) in ["a", "b"].iter().zip(&pools) {
        sandbox.make_pool(path);
        text += &format!(
            "[pools.{name}]\npath = {path:?}\nreserve = \"1%\"\nfilesystem = \"ext4\"\nkeep_deleted = \"7d\"\n"
        );
    }
    let driver = sandbox.install_with("example.com/loop", &text);
    let make = |pool: &str| {
        let asked = serde_json::json!({
            "kubernetes.io/pvOrVolumeName": "pv",
            "kubernetes.io/pvc.namespace": "default",
            "pool": pool,
            "requestBytes": (32 << 20).to_string(),
        });
        let made = driver.call(&["provision", &asked.to_string()]).success();
        PersistentVolume::from_reply("pv", "ext4", &made)
    };
    let volume = make("a");
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    fs::write(pod.dir().join("file"), "precious").unwrap();
    pod.unmount().success();
    driver.call(&["delete", &volume.json("rw")]).success();
    let [from, to] = pools
        .each_ref()
        .map(|pool| pool.join("volumes").join(volume.id()));
    fs::rename(from, &to).unwrap();

    let told = error_of(&driver, &["undelete", volume.handle()]);
    assert!(told.contains("is a copy of another one"), "{told}");
    assert!(told.contains("take it over with `flexvol adopt`"), "{told}");
    assert_eq!(fs::read_dir(pools[1].join("names")).unwrap().count(), 0);
    points.add(1);
    let other = make("b");
    assert_ne!(other.handle(), volume.handle());
    let listed = json_of(&driver, &["show", other.handle(), "-o", "json"]);
    assert_eq!(listed["pool"], "b", "{listed}");
    points.add(1);

    let path = to.to_str().unwrap();
    let adopt = ["adopt", path, "--name", "back", "--pool", "b", "-o", "json"];
    let back = persistent_volume(&json_of(&driver, &adopt));
    assert_ne!(back.handle(), volume.handle());
    // A second time changes nothing.
    let again = persistent_volume(&json_of(&driver, &adopt));
    assert_eq!(again.handle(), back.handle());
    let pod = Pod::new(&sandbox, &driver, &back, "two");
    pod.mount("rw").success();
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), b"precious");
    pod.unmount().success();
    let told = error_of(&driver, &["undelete", volume.handle()]);
    assert!(told.contains("no such volume"), "{told}");
    points.add(1);
}
