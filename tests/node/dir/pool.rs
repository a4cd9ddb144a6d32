//! What a pool of directories promises, refuses and cleans up.

use super::{MIB, Place, SIZE, install, on_each};
use crate::by_hand::{complaint, said, said_json};
use flexvol_testing::{Baseline, Need, PersistentVolume, Points, Test, request, tests};
use std::{collections::BTreeSet, fs, process::Command, thread};

pub const TESTS: &[Test] = on_each![
    "no more is promised than there is, unless more is allowed" => promises,
    "volumes made at the same time are one for one name, each with a limit of its own" => parallel,
    "people see limits, and gc clears what was cut short" => people,
    "attached, it is mounted for the node and then for its pods" => attached,
];

tests! {
    PROJECTS:
    "dir on xfs: a project is not used again while anything has it", super::XFS
        => |points| reuse(&Place::new("xfs"), points);
    "dir on ext4: a project is not used again while anything has it", super::EXT4
        => |points| reuse(&Place::new("ext4"), points);
    "dir: where nothing limits directories no volume is made, and what to turn on is said", &[Need::Root, Need::Filesystem("btrfs"), Need::Tool("mkfs.xfs", "xfsprogs"), Need::Tool("mkfs.ext4", "e2fsprogs"), Need::Tool("mkfs.btrfs", "btrfs-progs")]
        => refused;
}

/// What can be provisioned, by the driver's own word.
fn capacity(driver: &flexvol_testing::Driver) -> u64 {
    let call = driver.call(&["capacity", "{}"]).success();
    call.object().unwrap()["capacity"].as_u64().unwrap()
}

fn promises(place: &Place, points: &Points) {
    let all = capacity(&place.driver);
    assert!(all > 256 * MIB && all.is_multiple_of(MIB), "{all}");
    let half = all / 2 / MIB * MIB;
    let a = PersistentVolume::provision(&place.driver, "a", "", half);
    let left = capacity(&place.driver);
    // Each volume has a root, which takes some blocks.
    let about = |found: u64, expected: u64| {
        assert!(
            expected.abs_diff(found) <= 8 * MIB,
            "{found}, not about {expected}"
        );
    };
    about(left, all - half);
    points.add(1);
    let refused = place
        .driver
        .call(&["provision", &request("b", all - half + 16 * MIB)]);
    assert!(refused.failure().contains("the pool has"), "{refused}");
    assert_eq!(refused.text("errorClass"), "exhausted");
    let b = PersistentVolume::provision(&place.driver, "b", "", left - 16 * MIB);
    about(capacity(&place.driver), 16 * MIB);
    let pod = place.mounted(&a, "one");
    let refused = place.grow(&pod, half + 64 * MIB);
    assert!(refused.failure().contains("the pool has"), "{refused}");
    points.add(2);
    // What is written was promised before.
    assert_eq!(super::write(pod.dir(), "file", 32 * MIB), "");
    let now = capacity(&place.driver);
    match place.has_projects() {
        true => about(now, 16 * MIB),
        false => assert!(now <= 24 * MIB, "{now}"),
    }

    let generous = install(&place.sandbox, "generous", "overcommit = true");
    let c = PersistentVolume::provision(&generous, "c", "", all);
    assert_eq!(capacity(&place.driver), 0);
    points.add(1);
    pod.unmount().success();
    for volume in [&a, &b, &c] {
        place.delete(volume).success();
    }
    if !place.has_projects() {
        for what in ["filesystem", "subvolume"] {
            super::run("btrfs", &[what, "sync"], &place.sandbox.disk());
        }
    }
    super::eventually("all to be had again", || {
        all.abs_diff(capacity(&place.driver)) <= 8 * MIB
    });
}

fn parallel(place: &Place, points: &Points) {
    let names = ["a", "b", "c", "a", "b", "c", "d", "d"];
    let made: Vec<PersistentVolume> = thread::scope(|scope| {
        let calls: Vec<_> = names
            .iter()
            .map(|name| scope.spawn(|| place.volume(name)))
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    let handles: BTreeSet<_> = made.iter().map(PersistentVolume::handle).collect();
    assert_eq!(handles.len(), 4);
    assert_eq!(fs::read_dir(place.volumes()).unwrap().count(), 4);
    let listed = said_json(&place.driver, &["list", "-o", "json"]);
    let volumes = listed["volumes"].as_array().unwrap();
    assert!(
        volumes.iter().all(|volume| volume["storage"] == SIZE),
        "{listed}"
    );
    if place.has_projects() {
        let projects: BTreeSet<String> = made
            .iter()
            .map(|volume| {
                let line = super::run("lsattr", &["-p", "-d"], &place.directory(volume));
                line.split_whitespace().next().unwrap().to_owned()
            })
            .collect();
        assert_eq!(projects.len(), 4, "{projects:?}");
    }
    points.add(8);
}

fn people(place: &Place, points: &Points) {
    let volume = place.volume("pv");
    let pod = place.mounted(&volume, "one");
    let shown = said_json(&place.driver, &["show", "pv", "-o", "json"]);
    assert_eq!(shown["directory"], true);
    assert_eq!(shown["storage"], SIZE);
    assert_eq!(shown["mounts"].as_array().unwrap().len(), 1);
    let text = said(&place.driver, &["show", pod.dir().to_str().unwrap()]);
    assert!(text.contains("16Mi (a limit)"), "{text}");
    let explained = said_json(
        &place.driver,
        &["explain", "pv", "--size", "24Mi", "-o", "json"],
    );
    let steps = &explained["grow"]["steps"];
    assert_eq!(explained["grow"]["end"], "reached", "{explained}");
    assert!(
        steps.as_array().unwrap().contains(&"grow-storage".into()),
        "{steps}"
    );
    assert!(explained["mount"]["end"] == "reached", "{explained}");
    points.add(4);
    let why = complaint(&place.driver, &["adopt", "/srv/data", "--name", "x"]);
    assert!(why.contains("directories are not taken over"), "{why}");

    // Cut short: one that was being made, and one that was being removed.
    let before = Baseline::of(&place.sandbox);
    let doomed = place.volume("doomed");
    fs::create_dir_all(place.directory(&doomed).join("a/b")).unwrap();
    fs::write(place.directory(&doomed).join("a/b/file"), "gone").unwrap();
    let other = place.volume("other");
    for (volume, prefix) in [(&doomed, ".gone-"), (&other, ".new-")] {
        let name = format!("{prefix}{}", volume.id());
        fs::rename(place.around(volume), place.volumes().join(name)).unwrap();
    }
    let told = said(&place.driver, &["gc", "--dry-run"]);
    assert_eq!(told.lines().count(), 2, "{told}");
    assert!(told.contains("whose removal was cut short"), "{told}");
    let done = said(&place.driver, &["gc"]);
    assert_eq!(done.replace("removed ", "would remove "), told);
    for name in ["doomed", "other"] {
        fs::remove_file(place.sandbox.pool().join("names").join(name)).unwrap();
    }
    before.expect(&place.sandbox, "tidied");
    points.add(2);
    pod.unmount().success();
}

fn attached(place: &Place, points: &Points) {
    let pool = place.sandbox.pool();
    let text = format!(
        "backend = \"dir\"\nattach = true\n[pools.default]\npath = {pool:?}\nreserve = \"5%\"\n"
    );
    let driver = place.sandbox.install_with("example.com/far", &text);
    let init = driver.call(&["init"]).success().object().unwrap();
    assert_eq!(init["capabilities"]["attach"], true);
    let volume = PersistentVolume::provision(&driver, "pv", "", SIZE);
    let json = volume.json("rw");
    let attached = driver.call(&["attach", &json, "node"]).success();
    let device = attached.text("device");
    let waited = driver.call(&["waitforattach", &device, &json]).success();
    assert_eq!(waited.text("device"), device);
    let node = place
        .sandbox
        .kubelet_root()
        .join("plugins/kubernetes.io/flexvolume/example.com/far/mounts/pv");
    fs::create_dir_all(&node).unwrap();
    let dir = node.to_str().unwrap();
    driver.call(&["mountdevice", dir, &device, &json]).success();
    let pod = flexvol_testing::Pod::new(&place.sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    fs::write(pod.dir().join("file"), "text").unwrap();
    assert_eq!(fs::read(node.join("file")).unwrap(), b"text");
    if place.has_projects() {
        assert_eq!(super::total(pod.dir()), SIZE);
    }
    points.add(3);
    pod.unmount().success();
    let refused = driver.call(&["delete", &json]);
    assert!(refused.failure().contains("still mounted"), "{refused}");
    driver.call(&["unmountdevice", dir]).success();
    driver.call(&["detach", "pv", "node"]).success();
    driver.call(&["delete", &json]).success();
}

fn reuse(place: &Place, points: &Points) {
    let driver = install(&place.sandbox, "few", "projects = \"7001-7002\"");
    let provision = |name: &str| driver.call(&["provision", &request(name, SIZE)]);
    let delete = |volume: &PersistentVolume| driver.call(&["delete", &volume.json("rw")]);
    let made = |name: &str| PersistentVolume::from_reply(name, "", &provision(name).success());
    let none_left = |name: &str| {
        let refused = provision(name).failure();
        assert!(
            refused.contains("all projects from 7001-7002 are in use"),
            "{refused}"
        );
        points.add(1);
    };
    let (a, b) = (made("a"), made("b"));
    none_left("c");
    // Removed as far as the data, but not the directory.
    let gone = place.volumes().join(format!(".gone-{}", a.id()));
    fs::rename(place.around(&a), &gone).unwrap();
    none_left("c");
    delete(&a).success();
    assert!(!gone.exists());
    let c = made("c");
    // A file that is deleted and still open is data too.
    let path = place.directory(&c).join("file");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    let open = fs::File::open(&path).unwrap();
    delete(&c).success();
    none_left("d");
    drop(open);
    super::eventually("the kernel to count nothing", || {
        provision("d").outcome() == flexvol_testing::Outcome::Success
    });
    none_left("e");
    // So is what somebody else has in that project.
    delete(&b).success();
    let foreign = place.sandbox.disk().join("foreign");
    fs::write(&foreign, "somebody's").unwrap();
    let taken = super::run("lsattr", &["-p", "-d"], &place.directory(&made("d")));
    let taken: u32 = taken.split_whitespace().next().unwrap().parse().unwrap();
    let other = if taken == 7001 { "7002" } else { "7001" };
    super::run("chattr", &["-p", other], &foreign);
    none_left("e");
    fs::remove_file(&foreign).unwrap();
    super::eventually("the kernel to count nothing", || {
        provision("e").outcome() == flexvol_testing::Outcome::Success
    });
    // A pool inside somebody's project: nothing with another project can be moved into it.
    super::run("chattr", &["-p", "5", "+P"], &place.volumes());
    let refused = place.driver.call(&["provision", &request("f", SIZE)]);
    assert!(
        refused.failure().contains("a project of somebody else's"),
        "{refused}"
    );
    points.add(1);
}

fn refused(points: &Points) {
    for (kind, remedy) in [
        ("xfs", "mount it with the option prjquota"),
        ("ext4", "tune2fs -O project,quota -Q prjquota"),
        ("btrfs", "btrfs quota enable"),
    ] {
        let place = Place::with(kind, false);
        let before = Baseline::of(&place.sandbox);
        for call in [
            place.driver.call(&["provision", &request("pv", SIZE)]),
            place.driver.call(&["capacity", "{}"]),
        ] {
            assert!(call.failure().contains(remedy), "{call}");
            points.add(1);
        }
        before.expect(&place.sandbox, "refused");
        let init = Command::new(place.driver.executable())
            .args(["pool", "init"])
            .arg(place.sandbox.pool())
            .output()
            .unwrap();
        let init = String::from_utf8(init.stdout).unwrap();
        assert!(init.contains(remedy), "{init}");
        let doctor = Command::new(place.driver.executable())
            .args(["doctor", "--name", place.driver.name(), "--plugin-dir"])
            .arg(place.sandbox.plugins())
            .output()
            .unwrap();
        let told = String::from_utf8(doctor.stdout).unwrap();
        let line = told.lines().find(|line| line.contains("pool default"));
        let line = line.unwrap_or_else(|| panic!("{told}"));
        assert!(line.starts_with("FAIL") && line.contains(remedy), "{line}");
        points.add(2);
    }
}
