//! Volumes of which nothing is known but the name, because the answer of `provision` was lost.

use crate::{lifecycle::MIB, sandbox};
use flexvol_testing::{Need, Points, Test, json};
use std::{fs, path::Path, process::Command};

pub const TESTS: &[Test] = &[Test {
    name: "a volume is deleted by its name alone, in whichever pool it is",
    needs: &[Need::Root],
    run: deleted_anywhere,
}];

fn deleted_anywhere(points: &Points) {
    let sandbox = sandbox();
    let pools = ["fast", "slow"].map(|name| {
        let pool = sandbox.disk().join(name);
        fs::create_dir(&pool).unwrap();
        pool
    });
    let [fast, slow] = &pools;
    let driver = sandbox.install_with(
        "example.com/pools",
        &format!(
            "backend = \"loop\"\n[pools.fast]\npath = {fast:?}\nreserve = \"64Mi\"\n\
             [pools.slow]\npath = {slow:?}\nreserve = \"64Mi\"\n"
        ),
    );
    for pool in &pools {
        let mut init = Command::new(driver.executable());
        let made = init.args(["pool", "init"]).arg(pool).output().unwrap();
        assert!(made.status.success(), "{made:?}");
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

    make("fast");
    make("slow");
    let refused = delete(&[]).failure();
    assert!(refused.contains("several pools"), "{refused}");
    assert_eq!((files(fast), files(slow)), (1, 1));
    delete(&[claim, ("pool", "slow")]).success();
    assert_eq!((files(fast), files(slow)), (1, 0));

    // That it is nowhere cannot be known, and where it is, it goes.
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
