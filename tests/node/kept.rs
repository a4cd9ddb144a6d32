//! Deleted volumes that are kept, so that they can be undeleted.

pub mod lost;
pub mod refused;

use crate::{
    by_hand::{error_of, json_of, stdout_of},
    node::{Backend, Node, capacity},
    sandbox,
    story::stories,
};
use flexvol_testing::{
    Driver, Need, PersistentVolume, Pod, Points, Sandbox, patience, request, tests, volume_id,
};
use rustix::fs::XattrFlags;
use std::{
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

stories! {
    STORIES:
    "a deleted volume is kept, taken back with its data, and removed after its time", [loop btrfs lvm]
        => kept;
}

tests! {
    "a wrong clock, another driver and a lost configuration end no time of keeping", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")]
        => not_early;
    "deleted volumes take no more of a pool than it keeps, and one tenant's cost no other's", &[Need::Root, Need::Tool("mkfs.ext4", "e2fsprogs")]
        => at_most;
    "a deleted volume does not go for the room of one that was taken back meanwhile", &[Need::Root, Need::Tool("mkfs.ext4", "e2fsprogs"), Need::Tool("strace", "strace")]
        => taken_back_meanwhile;
}

const MARK: &str = "trusted.flexvol";
const SIZE: u64 = 320 << 20;
/// The handle of a copy.
const HANDLE: &str = "00000000000000000000000000000001";
const DAY: &str = "keep_deleted = \"1d\"\n";
const SECONDS: &str = "keep_deleted = \"3s\"\n";
/// Long enough for `SECONDS` to expire.
const TIME: Duration = Duration::from_millis(4500);

/// The states of all volumes: those with a name first, in order.
fn states(driver: &Driver) -> Vec<String> {
    let list = json_of(driver, &["list", "-o", "json"]);
    let volumes = list["volumes"].as_array().unwrap();
    let state = |volume: &serde_json::Value| volume["state"].as_str().unwrap().to_owned();
    volumes.iter().map(state).collect()
}

/// Runs `gc` and returns the removed volumes, without locks of earlier volumes of the node.
fn removed(driver: &Driver, arguments: &[&str]) -> String {
    let all = stdout_of(driver, arguments);
    let volumes = all.split_inclusive('\n');
    volumes
        .filter(|line| line.contains("which was deleted"))
        .collect()
}

fn kept(backend: Backend, points: &Points) {
    let node = Node::with(backend, DAY);
    let driver = &node.driver;
    let volume = node.volume("pv");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    fs::write(pod.dir().join("file"), "precious").unwrap();
    let busy = node.delete(&volume).failure();
    assert!(busy.contains("still mounted"), "{busy}");
    pod.unmount().success();

    // Twice, because the caller may have missed the first reply.
    for _ in 0..2 {
        node.delete(&volume).success();
        assert_eq!(states(driver), ["deleted"]);
    }
    let told = pod.mount("rw").failure();
    assert!(told.contains("flexvol undelete"), "{told}");
    let told = stdout_of(driver, &["explain", volume.handle()]);
    assert!(told.contains("`flexvol undelete"), "{told}");
    assert_eq!(removed(driver, &["gc"]), "");
    points.add(4);

    // Its name is free for others, and undeleting needs the name.
    let other = node.volume("pv");
    assert_ne!(other.handle(), volume.handle());
    let told = error_of(driver, &["undelete", volume.handle()]);
    assert!(told.contains("another volume is called pv now"), "{told}");
    node.install(SECONDS);
    node.delete(&other).success();
    let told = stdout_of(driver, &["undelete", volume.handle()]);
    assert!(told.ends_with("is a volume again\n"), "{told}");
    let told = stdout_of(driver, &["undelete", volume.handle()]);
    assert!(told.contains("was not deleted"), "{told}");
    points.add(4);

    let again = node.volume("pv");
    assert_eq!(again.handle(), volume.handle());
    pod.mount("rw").success();
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), b"precious");
    pod.unmount().success();
    node.install(DAY);
    node.delete(&volume).success();
    points.add(2);

    // The period promised at deletion holds, whatever the configuration says later, and if it is deleted again.
    thread::sleep(TIME);
    node.install("");
    node.delete(&volume).success();
    let line = format!("volume {}, which was deleted", volume.id());
    assert!(!removed(driver, &["gc"]).contains(&line));
    let told = stdout_of(driver, &["undelete", volume.handle()]);
    assert!(told.ends_with("is a volume again\n"), "{told}");
    points.add(2);

    node.install(SECONDS);
    let begun = Instant::now();
    node.delete(&volume).success();
    let early = removed(driver, &["gc", "--dry-run"]);
    // Times are in whole seconds, and a slow machine may need that long for two calls.
    assert!(
        early.is_empty() || begun.elapsed() >= Duration::from_secs(2),
        "{early}"
    );
    thread::sleep(TIME);
    let would = removed(driver, &["gc", "--dry-run"]);
    let line = format!("would remove volume {}, which was deleted", volume.id());
    assert!(would.contains(&line), "{would}");
    assert!(states(driver).iter().all(|state| state == "deleted"));
    let did = removed(driver, &["gc"]);
    assert_eq!(did, would.replace("would remove", "removed"));
    assert!(states(driver).is_empty());
    assert_eq!(removed(driver, &["gc"]), "");
    let told = error_of(driver, &["undelete", volume.handle()]);
    assert!(told.contains("there is no such volume"), "{told}");
    node.delete(&volume).success();
    points.add(4);
}

fn not_early(points: &Points) {
    const WEEK: &str = "keep_deleted = \"7d\"\n";
    let sandbox = sandbox();
    let driver = sandbox.install("example.com/loop", false, WEEK);
    let volume = PersistentVolume::provision(&driver, "pv", "xfs", SIZE);
    let living = PersistentVolume::provision(&driver, "living", "xfs", SIZE);
    for volume in [&volume, &living] {
        let pod = Pod::new(&sandbox, &driver, volume, "a");
        pod.mount("rw").success();
        pod.unmount().success();
    }
    driver.call(&["delete", &volume.json("rw")]).success();
    let expect_kept = |driver: &Driver, why: &str| {
        assert_eq!(removed(driver, &["gc", "--dry-run"]), "", "{why}");
        assert_eq!(removed(driver, &["gc"]), "", "{why}");
        assert!(volume.image(&sandbox).exists(), "{why}");
        points.add(1);
    };

    // The node's clock was at 1970 when the volume was deleted.
    let image = volume.image(&sandbox);
    let mut mark = [0; 1024];
    let length = rustix::fs::getxattr(&image, MARK, &mut mark).unwrap();
    let mark = str::from_utf8(&mark[..length]).unwrap();
    let turned: Vec<_> = mark
        .split(':')
        .map(|field| match field.split_once('=') {
            Some(("deleted", _)) => "deleted=120".to_owned(),
            // The node booted a moment ago, and its clock was then set.
            Some(("kept", _)) => "kept=0/120/00000000-0000-0000-0000-000000000000/7".to_owned(),
            _ => field.to_owned(),
        })
        .collect();
    let turned = turned.join(":");
    rustix::fs::setxattr(&image, MARK, turned.as_bytes(), XattrFlags::REPLACE).unwrap();
    expect_kept(&driver, "the clock jumped");

    let other = sandbox.install("example.com/other", false, "");
    expect_kept(&other, "another driver keeps nothing");

    let configuration = driver.executable().with_file_name(".loop.toml");
    let text = fs::read_to_string(&configuration).unwrap();
    let keeps = |line: &&str| !line.starts_with("keep_deleted");
    let text: Vec<_> = text.lines().filter(keeps).collect();
    fs::write(&configuration, text.join("\n")).unwrap();
    expect_kept(&driver, "its configuration says something else");

    // The default pool is elsewhere; in this mount namespace it is this one.
    let by_default = |arguments: &[&str]| lost::by_default(&driver, &sandbox.pool(), arguments);
    for left in [Some(""), Some(" \n# Keep what was deleted for"), None] {
        match left {
            Some(text) => fs::write(&configuration, text).unwrap(),
            None => fs::remove_file(&configuration).unwrap(),
        }
        assert!(!by_default(&["gc"]).contains("which was deleted"));
        assert!(volume.image(&sandbox).exists());
        let told = by_default(&["delete", &living.json("rw")]);
        assert!(told.contains("configuration is missing"), "{told}");
        assert!(living.image(&sandbox).exists());
        points.add(2);
    }
}

/// Provisions and formats a volume.
fn used(sandbox: &Sandbox, driver: &Driver, namespace: &str, mebibytes: u64) -> PersistentVolume {
    let asked = serde_json::json!({
        "kubernetes.io/pvOrVolumeName": format!("pv-{namespace}"),
        "kubernetes.io/pvc.namespace": namespace,
        "requestBytes": (mebibytes << 20).to_string(),
        "fsType": "ext4",
    });
    let made = driver.call(&["provision", &asked.to_string()]).success();
    let volume = PersistentVolume::from_reply(&format!("pv-{namespace}"), "ext4", &made);
    let pod = Pod::new(sandbox, driver, &volume, "a");
    pod.mount("rw").success();
    pod.unmount().success();
    volume
}

/// Provisions, formats and deletes a volume.
fn thrown_away(
    sandbox: &Sandbox,
    driver: &Driver,
    namespace: &str,
    mebibytes: u64,
) -> PersistentVolume {
    let volume = used(sandbox, driver, namespace, mebibytes);
    driver.call(&["delete", &volume.json("rw")]).success();
    volume
}

/// Installs a driver with this limit for kept volumes.
fn keeping(sandbox: &Sandbox, most: &str) -> Driver {
    let settings = format!("reserve = \"0%\"\nnamespaces = \"any\"\nkeep_deleted = \"7d\"\n{most}");
    sandbox.install("example.com/loop", false, &settings)
}

fn taken_back_meanwhile(points: &Points) {
    let sandbox = sandbox();
    let driver = keeping(&sandbox, "keep_at_most = \"1Gi\"\n");
    let [first, second] = [300, 301].map(|mebibytes| {
        let volume = thrown_away(&sandbox, &driver, "ours", mebibytes);
        // Times are in whole seconds.
        thread::sleep(Duration::from_millis(1100));
        volume
    });
    let third = used(&sandbox, &driver, "ours", 500);
    // With this one the limit is exceeded and the first must go, but its lock is taken late.
    let lock = format!("/run/flexvol/lock/{}", first.id());
    let late = format!("inject=flock:delay_enter={}", 3_000_000 * patience());
    let log = sandbox.path("delete.log");
    let log = log.to_str().unwrap();
    let strace = [
        "/usr/bin/strace",
        "-f",
        "-qq",
        "-o",
        log,
        "-P",
        &lock,
        "-e",
        &late,
    ];
    thread::scope(|scope| {
        let delete = scope.spawn(|| driver.call_through(&strace, &["delete", &third.json("rw")]));
        thread::sleep(Duration::from_secs(1) * patience());
        stdout_of(&driver, &["undelete", second.handle()]);
        assert!(!delete.is_finished());
        delete.join().unwrap().success();
    });
    for volume in [&first, &second, &third] {
        assert!(volume.image(&sandbox).exists());
    }
    points.add(1);
}

fn at_most(points: &Points) {
    let sandbox = sandbox();
    let install = |most: &str| keeping(&sandbox, most);
    let is_kept = |volume: &PersistentVolume| volume.image(&sandbox).exists();
    let driver = install("keep_at_most = \"1Gi\"\n");
    let theirs = thrown_away(&sandbox, &driver, "theirs", 100);
    // As much as a quota for one claim allows, again and again.
    let mut ours = Vec::new();
    for _ in 0..6 {
        ours.push(thrown_away(&sandbox, &driver, "ours", 300));
        // Times are in whole seconds.
        thread::sleep(Duration::from_millis(1100));
    }
    let kept: Vec<bool> = ours.iter().map(is_kept).collect();
    assert_eq!(kept, [false, false, false, true, true, true]);
    assert!(is_kept(&theirs));
    points.add(1);

    // A volume larger than the limit is not kept, and evicts no others.
    let large = thrown_away(&sandbox, &driver, "theirs", 1100);
    assert!(!is_kept(&large));
    let kept: Vec<bool> = ours.iter().map(is_kept).collect();
    assert_eq!(kept, [false, false, false, true, true, true]);
    points.add(1);

    // A copy has the mark of a kept volume, but was not deleted itself.
    let copy = sandbox.pool().join("volumes").join(volume_id(HANDLE));
    let image = ours[5].image(&sandbox);
    let copied = Command::new("cp")
        .args(["--preserve=all", "--sparse=always"])
        .args([&image, &copy])
        .status();
    assert!(copied.unwrap().success());
    let small = thrown_away(&sandbox, &driver, "ours", 20);
    assert!(ours[3..].iter().all(is_kept) && is_kept(&theirs) && is_kept(&small));
    fs::remove_file(&copy).unwrap();
    points.add(1);

    // Kept volumes are not evicted for new ones, and can be undeleted.
    let wanted = request("more", capacity(&driver) + (200 << 20));
    driver.call(&["provision", &wanted]).failure();
    assert!(ours[3..].iter().all(is_kept) && is_kept(&theirs));
    stdout_of(&driver, &["undelete", ours[3].handle()]);
    points.add(1);

    // With a lower limit, `gc --dry-run` reports what `gc` removes.
    let driver = install("keep_at_most = \"12%\"\n");
    let would = removed(&driver, &["gc", "--dry-run"]);
    let line = format!(
        "would remove volume {}, which was deleted and is more than is kept\n",
        ours[4].id()
    );
    assert_eq!(would, line);
    assert!(is_kept(&ours[4]));
    let did = removed(&driver, &["gc"]);
    assert_eq!(did, would.replace("would remove", "removed"));
    assert!(!is_kept(&ours[4]) && is_kept(&ours[5]) && is_kept(&theirs));
    assert!(is_kept(&ours[3]), "it is a volume again");
    points.add(1);

    // Without the setting, volumes that were promised to be kept stay.
    let driver = install("");
    assert_eq!(removed(&driver, &["gc"]), "");
    let more = thrown_away(&sandbox, &driver, "late", 600);
    assert!(is_kept(&more) && is_kept(&ours[5]) && is_kept(&theirs));
    points.add(1);
}
