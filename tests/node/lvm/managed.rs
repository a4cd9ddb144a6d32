//! Administration of volume groups: making them pools, and reporting their faults and content.

use super::{GROUP, NEEDS, SIZE, flexvol, group, inventory, lvm, output, run, thin_pool};
use crate::node::{self, Backend, MIB};
use flexvol_testing::{Hidden, PersistentVolume, Points, Sandbox, disks, request, tests};
use std::{fs, path::Path};

tests! {
    "lvm: nothing is made in a group that is no pool, and doctor says what is missing", NEEDS
        => explained;
    "lvm: capacity is what can be had, also of stripes on unequal disks", NEEDS => capacity;
}

/// Runs doctor and returns each problem with its remedy.
fn doctor(sandbox: &Sandbox) -> Vec<String> {
    let plugins = sandbox.plugins();
    let words = [
        "doctor",
        "--output",
        "json",
        "--plugin-dir",
        plugins.to_str().unwrap(),
    ];
    let said = output(crate::executable().to_str().unwrap(), &words);
    let checks: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    let wrong = checks
        .as_array()
        .unwrap()
        .iter()
        .filter(|check| check["remedy"].is_string());
    wrong
        .map(|check| {
            format!(
                "{}: {}: {}",
                check["check"], check["found"], check["remedy"]
            )
        })
        .collect()
}

#[track_caller]
fn says(sandbox: &Sandbox, words: &[&str]) {
    let said = doctor(sandbox);
    let found = said
        .iter()
        .any(|line| words.iter().all(|word| line.contains(word)));
    assert!(found, "{words:?} in {said:#?}");
}

fn explained(points: &Points) {
    let sandbox = crate::sandbox();
    let driver = Backend::Lvm.install(&sandbox, "lvm", false, "");
    let provision = || driver.call(&["provision", &request("pv", SIZE)]);
    {
        let _hidden = Hidden::tools(&["lvm"]);
        says(&sandbox, &["lvm is not installed", "lvm2"]);
        let refused = provision().failure();
        assert!(refused.contains("lvm2"), "{refused}");
    }
    says(&sandbox, &["volume group is not there", "vgcreate"]);
    let refused = provision().failure();
    assert!(refused.contains("volume group is not there"), "{refused}");
    points.add(2);

    group(GROUP, &disks()[..1]);
    says(
        &sandbox,
        &["not a pool of flexvol", "flexvol pool init --group vg0"],
    );
    let refused = provision().failure();
    assert!(refused.contains("not a pool of flexvol"), "{refused}");
    assert_eq!(lvm(&["lvs", "--noheadings", GROUP]), "");
    points.add(1);

    let init = ["pool", "init", "--group", GROUP];
    let (first, second) = (flexvol(&init), flexvol(&init));
    assert!(first.contains("is a pool now") && second.contains("was a pool already"));
    let id = |text: &str| text.trim().rsplit(' ').next().unwrap().to_owned();
    assert_eq!(id(&first), id(&second));
    let volume = PersistentVolume::from_reply("pv", "xfs", &provision().success());
    assert!(
        !doctor(&sandbox)
            .iter()
            .any(|line| line.contains("pool default"))
    );

    // Two pools of one name, as when another node's disk is attached, on a node that remembers neither.
    for memory in ["/etc/flexvol/groups", "/var/lib/flexvol/groups"] {
        fs::remove_dir_all(memory).unwrap();
    }
    lvm(&["vgchange", "-qq", "-an", GROUP]);
    let filter = "devices{filter=[\"a|/dev/vdb|\",\"r|.*|\"]}";
    lvm(&[
        "vgcreate", "-qq", "-y", "--config", filter, GROUP, "/dev/vdb",
    ]);
    let uuid = lvm(&[
        "vgs",
        "--noheadings",
        "-o",
        "vg_uuid",
        "--config",
        filter,
        GROUP,
    ]);
    let uuid = uuid.trim().replace('-', "");
    let tag = format!("flexvol-pool=1:key={}:group={uuid}", "0".repeat(32));
    lvm(&[
        "vgchange", "-qq", "--config", filter, "--addtag", &tag, GROUP,
    ]);
    says(&sandbox, &["several volume groups", "vgrename"]);
    let refused = driver.call(&["delete", &volume.json("rw")]).failure();
    assert!(refused.contains("several volume groups"), "{refused}");
    lvm(&["vgremove", "-qq", "-y", "--config", filter, GROUP]);
    points.add(1);

    thin_pool("400M");
    let thin = Backend::ThinLvm.install(&sandbox, "lvm", false, "");
    says(&sandbox, &["not a pool of flexvol", "--thin-pool tp0"]);
    flexvol(&["pool", "init", "--group", GROUP, "--thin-pool", "tp0"]);
    let path = format!("{GROUP}/tp0");
    lvm(&["lvchange", "-qq", "-y", "--errorwhenfull", "n", &path]);
    says(
        &sandbox,
        &["wait for a minute", "--errorwhenfull y vg0/tp0"],
    );
    lvm(&[
        "lvchange",
        "-qq",
        "-y",
        "--errorwhenfull",
        "y",
        "-Zn",
        &path,
    ]);
    let refused = thin.call(&["provision", &request("thin", SIZE)]).failure();
    assert!(refused.contains("does not zero"), "{refused}");
    says(&sandbox, &["does not zero", "lvchange -Zy"]);
    points.add(3);

    // A kernel without thin volumes.
    lvm(&["lvchange", "-qq", "-y", "-Zy", &path]);
    lvm(&["vgchange", "-qq", "-an", GROUP]);
    run("modprobe", &["-r", "dm_thin_pool"]);
    let settings = Path::new("/etc/modprobe.d");
    fs::create_dir_all(settings).unwrap();
    let without = settings.join("without-thin-volumes.conf");
    fs::write(&without, "install dm_thin_pool /bin/false\n").unwrap();
    let refused = thin.call(&["provision", &request("thin", SIZE)]).failure();
    let words = "kernel does not have what it needs (dm_mod, or dm_thin_pool";
    assert!(refused.contains(words), "{refused}");
    fs::remove_file(&without).unwrap();
    thin.call(&["provision", &request("thin", SIZE)]).success();
    points.add(1);
    // A volume of the other pool does not belong to this one.
    let listed = flexvol(&["list", "--config", &configuration(&sandbox)]);
    assert!(!listed.contains("pv"), "{listed}");
}

fn configuration(sandbox: &Sandbox) -> String {
    let path = sandbox.plugins().join("example.com~lvm/.lvm.toml");
    path.to_str().unwrap().to_owned()
}

fn capacity(points: &Points) {
    // One disk has less free space than the other.
    group(GROUP, &disks()[..2]);
    lvm(&[
        "lvcreate", "-qq", "-y", "-L", "1G", "-n", "other", GROUP, "/dev/vda",
    ]);
    flexvol(&["pool", "init", "--group", GROUP]);
    let sandbox = crate::sandbox();
    for (stripes, reserve) in [(1, "0%"), (2, "0%"), (2, "10%"), (3, "0%")] {
        let more = format!("stripes = {stripes}\nreserve = \"{reserve}\"\n");
        let driver = Backend::Lvm.install(&sandbox, "lvm", false, &more);
        let all = node::capacity(&driver);
        if stripes == 3 {
            assert_eq!(all, 0);
            driver.call(&["provision", &request("pv", SIZE)]).failure();
            continue;
        }
        let extent = 4 * MIB * stripes;
        assert!(all > 1000 * MIB && all.is_multiple_of(extent), "{all}");
        let before = inventory();
        let refused = driver
            .call(&["provision", &request("pv", all + extent)])
            .failure();
        assert!(refused.contains("to give"), "{refused}");
        assert_eq!(inventory(), before);
        let made = driver.call(&["provision", &request("pv", all)]).success();
        let volume = PersistentVolume::from_reply("pv", "xfs", &made);
        assert_eq!(super::told(&volume, "lv_size"), all.to_string());
        assert!(node::capacity(&driver) < extent);
        driver.call(&["delete", &volume.json("rw")]).success();
        assert_eq!(node::capacity(&driver), all);
        points.add(1);
    }
}
