//! What a pool of directories promises, refuses and cleans up.

use super::{SIZE, on_each};
use crate::{
    by_hand::{error_of, json_of, stdout_of},
    node::{Backend, MIB, Node, capacity},
    sandbox_with,
};
use flexvol_testing::{
    Baseline, Driver, Need, PersistentVolume, Points, PoolFilesystem, Test, request, tests,
};
use std::{fs, process::Command};

pub const TESTS: &[Test] = on_each![
    "no more is promised than there is, unless more is allowed" => promises,
    "people see limits, and gc clears what was cut short" => people,
    "what other files take of the promised space is told as missing" => missing,
];

tests! {
    PROJECTS:
    "dir on xfs: a project is not used again while anything has it", super::XFS
        => |points| reuse(&Node::new(Backend::Dir("xfs")), points);
    "dir on ext4: a project is not used again while anything has it", super::EXT4
        => |points| reuse(&Node::new(Backend::Dir("ext4")), points);
    "dir: where nothing limits directories no volume is made, and what to turn on is said", &[Need::Root, Need::Filesystem("btrfs"), Need::Tool("mkfs.xfs", "xfsprogs"), Need::Tool("mkfs.ext4", "e2fsprogs"), Need::Tool("mkfs.btrfs", "btrfs-progs")]
        => refused;
}

fn promises(node: &Node, points: &Points) {
    let all = capacity(&node.driver);
    assert!(all > 256 * MIB && all.is_multiple_of(MIB), "{all}");
    let half = all / 2 / MIB * MIB;
    let a = PersistentVolume::provision(&node.driver, "a", "", half);
    let left = capacity(&node.driver);
    // Each volume's root takes some blocks.
    let about = |found: u64, expected: u64| {
        assert!(
            expected.abs_diff(found) <= 8 * MIB,
            "{found}, not about {expected}"
        );
    };
    about(left, all - half);
    points.add(1);
    let refused = node
        .driver
        .call(&["provision", &request("b", all - half + 16 * MIB)]);
    assert!(refused.failure().contains("the pool has"), "{refused}");
    assert_eq!(refused.text("errorClass"), "exhausted");
    let b = PersistentVolume::provision(&node.driver, "b", "", left - 16 * MIB);
    about(capacity(&node.driver), 16 * MIB);
    let pod = node.mounted(&a, "one");
    let refused = node.grow(&pod, half + 64 * MIB);
    assert!(refused.failure().contains("the pool has"), "{refused}");
    points.add(2);
    // Written data was promised space before.
    assert_eq!(super::write(pod.dir(), "file", 32 * MIB), "");
    let now = capacity(&node.driver);
    match node.has_projects() {
        true => about(now, 16 * MIB),
        false => assert!(now <= 24 * MIB, "{now}"),
    }

    let generous = node.install_as("generous", "overcommit = true");
    let c = PersistentVolume::provision(&generous, "c", "", all);
    assert_eq!(capacity(&node.driver), 0);
    points.add(1);
    pod.unmount().success();
    for volume in [&a, &b, &c] {
        node.delete(volume).success();
    }
    if !node.has_projects() {
        for what in ["filesystem", "subvolume"] {
            super::run("btrfs", &[what, "sync"], &node.sandbox.disk());
        }
    }
    super::eventually("all to be had again", || {
        all.abs_diff(capacity(&node.driver)) <= 8 * MIB
    });
}

fn missing(node: &Node, points: &Points) {
    let told = |driver: &Driver| {
        let reply = driver.call(&["capacity", "{}"]).success();
        let missing = reply.object().unwrap().get("missing").cloned();
        missing.map(|bytes| bytes.as_u64().unwrap())
    };
    assert_eq!(told(&node.driver), Some(0), "without volumes");
    let half = capacity(&node.driver) / 2 / MIB * MIB;
    let volume = PersistentVolume::provision(&node.driver, "a", "", half);
    assert_eq!(told(&node.driver), Some(0));
    let filler = node.sandbox.fill_disk(32 * MIB);
    // Btrfs counts free space when it commits.
    nix::unistd::syncfs(fs::File::open(node.sandbox.disk()).unwrap()).unwrap();
    let lacks = told(&node.driver).unwrap();
    assert!(
        lacks.abs_diff(half - 32 * MIB) <= 16 * MIB,
        "{lacks} of {half}"
    );
    points.add(3);
    // With overcommit nothing was promised as a whole, so nothing is missing.
    let generous = node.install_as("generous", "overcommit = true");
    assert_eq!(told(&generous), None);
    points.add(1);
    fs::remove_file(filler).unwrap();
    node.delete(&volume).success();
}

fn people(node: &Node, points: &Points) {
    let volume = node.volume("pv");
    let pod = node.mounted(&volume, "one");
    let shown = json_of(&node.driver, &["show", "pv", "-o", "json"]);
    assert_eq!(shown["directory"], true);
    assert_eq!(shown["storage"], SIZE);
    assert_eq!(shown["mounts"].as_array().unwrap().len(), 1);
    let text = stdout_of(&node.driver, &["show", pod.dir().to_str().unwrap()]);
    assert!(text.contains("16Mi (a limit)"), "{text}");
    let explained = json_of(
        &node.driver,
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
    let why = error_of(&node.driver, &["adopt", "/srv/data", "--name", "x"]);
    assert!(why.contains("directories are not taken over"), "{why}");

    // An interrupted creation and an interrupted removal.
    let before = Baseline::of(&node.sandbox);
    let doomed = node.volume("doomed");
    fs::create_dir_all(node.directory(&doomed).join("a/b")).unwrap();
    fs::write(node.directory(&doomed).join("a/b/file"), "gone").unwrap();
    let other = node.volume("other");
    for (volume, prefix) in [(&doomed, ".gone-"), (&other, ".new-")] {
        let name = format!("{prefix}{}", volume.id());
        fs::rename(node.volume_directory(volume), node.volumes().join(name)).unwrap();
    }
    let told = stdout_of(&node.driver, &["gc", "--dry-run"]);
    assert_eq!(told.lines().count(), 2, "{told}");
    assert!(told.contains("whose removal was cut short"), "{told}");
    let done = stdout_of(&node.driver, &["gc"]);
    assert_eq!(done.replace("removed ", "would remove "), told);
    for name in ["doomed", "other"] {
        fs::remove_file(node.sandbox.pool().join("names").join(name)).unwrap();
    }
    before.expect(&node.sandbox, "tidied");
    points.add(2);
    pod.unmount().success();
}

fn reuse(node: &Node, points: &Points) {
    let driver = node.install_as("few", "projects = \"7001-7002\"");
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
    // The data was removed, but not the directory.
    let gone = node.volumes().join(format!(".gone-{}", a.id()));
    fs::rename(node.volume_directory(&a), &gone).unwrap();
    none_left("c");
    delete(&a).success();
    assert!(!gone.exists());
    let c = made("c");
    // A deleted file that is still open counts as data.
    let path = node.directory(&c).join("file");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    let open = fs::File::open(&path).unwrap();
    delete(&c).success();
    none_left("d");
    drop(open);
    super::eventually("the kernel to count nothing", || {
        provision("d").outcome() == flexvol_testing::Outcome::Success
    });
    none_left("e");
    // So does a foreign file in that project.
    delete(&b).success();
    let foreign = node.sandbox.disk().join("foreign");
    fs::write(&foreign, "somebody's").unwrap();
    let taken = super::run("lsattr", &["-p", "-d"], &node.directory(&made("d")));
    let taken: u32 = taken.split_whitespace().next().unwrap().parse().unwrap();
    let other = if taken == 7001 { "7002" } else { "7001" };
    super::run("chattr", &["-p", other], &foreign);
    none_left("e");
    fs::remove_file(&foreign).unwrap();
    super::eventually("the kernel to count nothing", || {
        provision("e").outcome() == flexvol_testing::Outcome::Success
    });
    // A pool in a foreign project: no directory with another project can be moved into it.
    super::run("chattr", &["-p", "5", "+P"], &node.volumes());
    let refused = node.driver.call(&["provision", &request("f", SIZE)]);
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
        let sandbox = sandbox_with(PoolFilesystem {
            kind,
            mebibytes: 512,
            quotas: false,
        });
        let node = Node::on(Backend::Dir(kind), sandbox, false, "");
        let before = Baseline::of(&node.sandbox);
        for call in [
            node.driver.call(&["provision", &request("pv", SIZE)]),
            node.driver.call(&["capacity", "{}"]),
        ] {
            assert!(call.failure().contains(remedy), "{call}");
            points.add(1);
        }
        before.expect(&node.sandbox, "refused");
        let init = Command::new(node.driver.executable())
            .args(["pool", "init"])
            .arg(node.sandbox.pool())
            .output()
            .unwrap();
        let init = String::from_utf8(init.stdout).unwrap();
        assert!(init.contains(remedy), "{init}");
        let doctor = Command::new(node.driver.executable())
            .args(["doctor", "--name", node.driver.name(), "--plugin-dir"])
            .arg(node.sandbox.plugins())
            .output()
            .unwrap();
        let told = String::from_utf8(doctor.stdout).unwrap();
        let line = told.lines().find(|line| line.contains("pool default"));
        let line = line.unwrap_or_else(|| panic!("{told}"));
        assert!(line.starts_with("FAIL") && line.contains(remedy), "{line}");
        points.add(2);
    }
}
