//! Volumes whose pool is not the named one, or of which only the name is known, because the reply of
//! `provision` was lost.

use crate::{node::MIB, sandbox};
use flexvol_testing::{Driver, Need, PersistentVolume, Pod, Points, json, tests};
use std::{fs, path::Path};

tests! {
    "a volume is deleted by its name alone, in whichever pool it is", &[Need::Root]
        => deleted_anywhere;
    "a volume that is not in the pool that is named is not gone", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")]
        => moved;
}

/// The pool's name is given to a new disk, and the old disk gets another name.
fn moved(points: &Points) {
    let sandbox = sandbox();
    let [old, new] = ["old", "new"].map(|name| sandbox.disk().join(name));
    let configured = |pools: &[(&str, &Path)]| {
        let pool = |(name, path): &(&str, &Path)| {
            format!("[pools.{name}]\npath = {path:?}\nreserve = \"64Mi\"\n")
        };
        let pools: String = pools.iter().map(pool).collect();
        sandbox.install_with("example.com/moved", &format!("backend = \"loop\"\n{pools}"))
    };
    let driver = configured(&[("default", &old)]);
    for path in [&old, &new] {
        sandbox.make_pool(path);
    }
    let volume = PersistentVolume::provision(&driver, "pv", "xfs", 320 * MIB);
    let options = volume.json("rw");
    let claim = json([
        ("kubernetes.io/pvOrVolumeName", "pv"),
        ("kubernetes.io/pvc.namespace", "default"),
        ("pool", "default"),
    ]);
    let pod = Pod::new(&sandbox, &driver, &volume, "a");
    pod.mount("rw").success();

    let delete = |driver: &Driver| driver.call(&["delete", &options]);
    let driver = configured(&[("default", &new), ("old", &old)]);
    let refused = delete(&driver).failure();
    assert!(refused.contains("still mounted"), "{refused}");
    // The owner of a name in another pool is not known.
    let refused = driver.call(&["delete", &claim]).failure();
    assert!(refused.contains("another pool has one"), "{refused}");
    let dir = pod.dir().to_str().unwrap();
    let (size, had) = ((400 * MIB).to_string(), (320 * MIB).to_string());
    driver
        .call(&["expandvolume", &options, dir, &size, &had])
        .success();
    let other = Pod::new(&sandbox, &driver, &volume, "b");
    other.mount("rw").success();
    other.unmount().success();
    points.add(4);

    // It is in no configured pool, but still mounted.
    let driver = configured(&[("default", &new)]);
    let refused = delete(&driver).failure();
    assert!(refused.contains("is in use on this node"), "{refused}");
    pod.unmount().success();

    // A pool that cannot be opened may contain the volume.
    let driver = configured(&[("default", &new), ("old", &old)]);
    let away = sandbox.disk().join("away");
    fs::rename(&old, &away).unwrap();
    delete(&driver).failure();
    fs::rename(&away, &old).unwrap();
    delete(&driver).success();
    assert_eq!(fs::read_dir(old.join("volumes")).unwrap().count(), 0);
    delete(&driver).success();
    driver.call(&["delete", &claim]).success();
    points.add(4);
}

fn deleted_anywhere(points: &Points) {
    let sandbox = sandbox();
    let pools = ["fast", "slow"].map(|name| sandbox.disk().join(name));
    let [fast, slow] = &pools;
    let driver = sandbox.install_with(
        "example.com/pools",
        &format!(
            "backend = \"loop\"\n[pools.fast]\npath = {fast:?}\nreserve = \"64Mi\"\n\
             [pools.slow]\npath = {slow:?}\nreserve = \"64Mi\"\n"
        ),
    );
    for pool in &pools {
        sandbox.make_pool(pool);
    }
    let name = ("kubernetes.io/pvOrVolumeName", "data");
    let claim = ("kubernetes.io/pvc.namespace", "default");
    let size = (100 * MIB).to_string();
    let make = |pool: &str| {
        let told = [name, claim, ("pool", pool), ("requestBytes", &size)];
        driver.call(&["provision", &json(told)]).success();
    };
    let delete = |more: &[(&str, &str)]| {
        let told = [&[name], more].concat();
        driver.call(&["delete", &json(told)])
    };
    let files = |pool: &Path| fs::read_dir(pool.join("volumes")).unwrap().count();
    let known_elsewhere = ("handle", "00000000000000000000000000000000");
    for told in [
        vec![],
        vec![claim],
        vec![claim, ("pool", "slow"), ("fsType", "xfs"), ("tier", "1")],
        vec![claim, ("pool", "mistyped")],
        vec![claim, known_elsewhere],
    ] {
        make("slow");
        assert_eq!(files(slow), 1);
        delete(&told).success();
        assert_eq!(files(slow), 0, "{told:?}");
        delete(&told).success();
        points.add(2);
    }
    let refused = delete(&[("pool", "mistyped")]).failure();
    assert!(refused.contains("mistyped"), "{refused}");

    // The name belongs to another namespace, so `provision` made nothing for this claim.
    make("slow");
    let stranger = ("kubernetes.io/pvc.namespace", "other");
    let told = [name, stranger, ("pool", "slow"), ("requestBytes", &size)];
    let refused = driver.call(&["provision", &json(told)]).failure();
    assert!(refused.contains("another namespace"), "{refused}");
    for told in [vec![stranger], vec![stranger, ("pool", "slow")]] {
        delete(&told).success();
        assert_eq!(files(slow), 1, "{told:?}");
        points.add(1);
    }
    delete(&[claim]).success();

    make("fast");
    make("slow");
    let refused = delete(&[]).failure();
    assert!(refused.contains("several pools"), "{refused}");
    assert_eq!((files(fast), files(slow)), (1, 1));
    delete(&[claim, ("pool", "slow")]).success();
    assert_eq!((files(fast), files(slow)), (1, 0));

    // While a pool is missing, the volume's absence is unknown. When it is back, the volume can be deleted.
    let away = sandbox.disk().join("away");
    fs::rename(slow, &away).unwrap();
    delete(&[]).success();
    assert_eq!(files(fast), 0);
    let unknown = delete(&[]).failure();
    assert!(!unknown.contains("several"), "{unknown}");
    fs::rename(&away, slow).unwrap();
    delete(&[]).success();
    points.add(6);
}
