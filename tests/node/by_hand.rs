//! People make, list, show and explain volumes, and kubelet uses them.

use crate::sandbox;
use flexvol_host::{VolumeId, lock};
use flexvol_testing::{
    Baseline, Driver, Need, PersistentVolume, Pod, Points, Sandbox, budget, tests,
};
use serde_json::Value;
use std::{
    fs,
    process::{Command, Output},
    time::{Duration, Instant},
};

const GIB: u64 = 1 << 30;
const XFS: &[Need] = &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")];

tests! {
    "create: the manifests carry a volume that kubelet mounts and grows", XFS
        => created_volume_is_used;
    "create: a second time changes nothing, and what contradicts it is refused", XFS
        => create_twice;
    "create: a second time without a pool finds the volume in the pool that has it", XFS
        => create_where_it_is;
    "list: persistent volumes are rebuilt as they were", XFS => rebuilt;
    "list: a broken volume is a row, a missing pool an error beside the others", XFS
        => broken_volumes;
    "explain: says what the driver then does, and waits for nobody", XFS => explained;
}

/// Runs a verb that must succeed, and returns its output.
pub fn stdout_of(driver: &Driver, arguments: &[&str]) -> String {
    let output = run(driver, arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    assert_eq!(errors, "", "{arguments:?}");
    text
}

/// Runs a verb that must fail, and returns the reason: one line on standard error, exit code 1.
pub fn error_of(driver: &Driver, arguments: &[&str]) -> String {
    let output = run(driver, arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
    text
}

pub fn run(driver: &Driver, arguments: &[&str]) -> Output {
    let mut command = Command::new(driver.executable());
    command.args(arguments).env_clear().output().unwrap()
}

pub fn json_of(driver: &Driver, arguments: &[&str]) -> Value {
    serde_json::from_str(&stdout_of(driver, arguments)).unwrap()
}

/// The persistent volume in a List, as `create --output json` and `adopt` print it.
pub fn persistent_volume(list: &Value) -> PersistentVolume {
    let items = list["items"].as_array().unwrap();
    let volume = items.iter().find(|item| item["kind"] == "PersistentVolume");
    let volume = volume.unwrap();
    let source = &volume["spec"]["flexVolume"];
    let options = source["options"].as_object().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    PersistentVolume {
        name: text(&volume["metadata"]["name"]),
        filesystem: match source["fsType"].as_str() {
            Some("xfs") => "xfs",
            Some("ext4") => "ext4",
            Some("ext3") => "ext3",
            Some("btrfs") => "btrfs",
            None => "",
            other => panic!("{other:?}"),
        },
        options: options
            .iter()
            .map(|(key, value)| (key.clone(), text(value)))
            .collect(),
    }
}

fn install(sandbox: &Sandbox) -> Driver {
    sandbox.install("flexvol.test/disk", false, "reserve = \"64Mi\"")
}

fn created_volume_is_used(_: &Points) {
    let sandbox = sandbox();
    let driver = install(&sandbox);
    let before = Baseline::of(&sandbox);
    let list = json_of(
        &driver,
        &[
            "create",
            "data",
            "--size",
            "1Gi",
            "--node",
            "n1",
            "-o",
            "json",
            "--with-storage-class",
        ],
    );
    let items = list["items"].as_array().unwrap();
    let kinds: Vec<_> = items
        .iter()
        .map(|item| item["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        ["StorageClass", "PersistentVolume", "PersistentVolumeClaim"]
    );
    let [class, volume, claim] = &items[..] else {
        panic!("{items:?}")
    };
    assert_eq!(class["allowVolumeExpansion"], true);
    for object in [volume, claim] {
        assert_eq!(
            object["spec"]["storageClassName"],
            class["metadata"]["name"]
        );
    }
    assert_eq!(claim["spec"]["volumeName"], volume["metadata"]["name"]);
    assert_eq!(
        volume["spec"]["claimRef"]["name"],
        claim["metadata"]["name"]
    );
    assert_eq!(
        volume["spec"]["claimRef"]["namespace"],
        claim["metadata"]["namespace"]
    );
    assert_eq!(volume["spec"]["capacity"]["storage"], "1Gi");
    assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "1Gi");
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    assert_eq!(volume["spec"]["flexVolume"]["driver"], "flexvol.test/disk");
    let term = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0];
    assert_eq!(term["matchExpressions"][0]["values"][0], "n1");

    let used = persistent_volume(&list);
    let pod = Pod::new(
        &sandbox,
        &driver,
        &used,
        "5d0e1b9c-0000-4000-8000-000000000001",
    );
    let _ = pod.mount("rw").success();
    let _ = driver.call(&pod.expand_arguments(2 * GIB, GIB)).success();
    let shown = json_of(&driver, &["show", "data", "-o", "json"]);
    assert_eq!(shown["storage"], 2 * GIB);
    assert_eq!(shown["device"]["size"], 2 * GIB);
    let spans = shown["filesystem"].as_u64().unwrap();
    assert!(2 * GIB - spans < 64 * 4096, "{shown}");
    assert_eq!(shown["mounts"][0]["path"], pod.dir().to_str().unwrap());
    assert_eq!(
        shown["mounts"][0]["pod"],
        "5d0e1b9c-0000-4000-8000-000000000001"
    );
    let by_directory = json_of(
        &driver,
        &["show", pod.dir().to_str().unwrap(), "-o", "json"],
    );
    assert_eq!(by_directory["handle"], used.handle());
    let _ = pod.unmount().success();
    let shown = json_of(&driver, &["show", used.handle(), "-o", "json"]);
    assert_eq!(shown["device"], Value::Null);
    assert_eq!(
        shown["filesystem"].as_u64().unwrap(),
        spans,
        "read from the image"
    );
    let _ = driver
        .call(&["delete".to_owned(), used.json("rw")])
        .success();
    before.expect(&sandbox, "deleted");
}

fn create_twice(points: &Points) {
    let sandbox = sandbox();
    let driver = install(&sandbox);
    let create = ["create", "data", "--size", "400Mi"];
    let first = stdout_of(&driver, &create);
    assert!(
        first.starts_with("# Volume data of 400Mi was made."),
        "{first}"
    );
    let before = Baseline::of(&sandbox);
    let again = stdout_of(&driver, &create);
    assert!(
        again.contains("was there already; nothing was changed"),
        "{again}"
    );
    let without_remark = |text: &str| text.split_once("---").unwrap().1.to_owned();
    assert_eq!(without_remark(&first), without_remark(&again));
    for (more, why) in [
        (
            &["--namespace", "other"][..],
            "belongs to namespace default",
        ),
        (&["--pool", "fast"], "is there, in pool default"),
        (&["--size", "1Gi"], "less than the requested 1Gi"),
    ] {
        let mut arguments = vec!["create", "data"];
        if more[0] != "--size" {
            arguments.extend(["--size", "400Mi"]);
        }
        arguments.extend(more);
        let text = error_of(&driver, &arguments);
        assert!(text.contains(why), "{text}");
        points.add(1);
    }
    before.expect(&sandbox, "nothing changed");
}

fn create_where_it_is(points: &Points) {
    let sandbox = sandbox();
    let fast = sandbox.disk().join("fast");
    sandbox.make_pool(&fast);
    let more = format!("reserve = \"64Mi\"\n[pools.fast]\npath = {fast:?}\n");
    let driver = sandbox.install("flexvol.test/disk", false, &more);
    let create = ["create", "data", "--size", "400Mi", "-o", "json"];
    let first = json_of(&driver, &[&create[..], &["--pool", "fast"]].concat());
    let again = json_of(&driver, &create);
    let [first, again] = [first, again].map(|list| persistent_volume(&list));
    assert_eq!(first.handle(), again.handle());
    assert_eq!(first.options, again.options);
    let listed = json_of(&driver, &["list", "-o", "json"]);
    let volumes = listed["volumes"].as_array().unwrap();
    assert_eq!(volumes.len(), 1, "{listed}");
    assert_eq!(volumes[0]["pool"], "fast");
    points.add(2);
}

fn rebuilt(_: &Points) {
    let sandbox = sandbox();
    let driver = install(&sandbox);
    let manifests = stdout_of(
        &driver,
        &["create", "data", "--size", "400Mi", "--node", "n1"],
    );
    let document = |text: &str| {
        let mut documents = text.split("---\n").map(|text| text.trim().to_owned());
        documents
            .find(|text| text.contains("kind: PersistentVolume\n"))
            .unwrap()
    };
    let list = json_of(
        &driver,
        &["create", "data", "--size", "400Mi", "-o", "json"],
    );
    let volume = persistent_volume(&list);
    let pod = Pod::new(&sandbox, &driver, &volume, "a");
    let _ = pod.mount("rw").success();
    let _ = pod.unmount().success();
    let rebuilt = stdout_of(&driver, &["list", "-o", "pv", "--node", "n1"]);
    assert_eq!(document(&rebuilt), document(&manifests));

    let other = json_of(
        &driver,
        &["create", "other", "--size", "400Mi", "-o", "json"],
    );
    let other = persistent_volume(&other);
    let all = stdout_of(&driver, &["list", "-o", "pv", "--node", "n1"]);
    assert!(all.contains(other.handle()), "{all}");
    let only = ["list", volume.handle(), "-o", "pv", "--node", "n1"];
    let only = stdout_of(&driver, &only);
    assert_eq!(document(&only), document(&manifests));
    assert!(!only.contains(other.handle()), "{only}");
    let unknown = "0123456789abcdef0123456789abcdef";
    let output = run(&driver, &["list", volume.handle(), unknown]);
    assert_eq!(output.status.code(), Some(1));
    let (listed, error) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(listed.contains(volume.handle()), "{listed}");
    assert!(error.contains(unknown) && !error.contains(volume.handle()));
}

fn broken_volumes(_: &Points) {
    let sandbox = sandbox();
    let pool = sandbox.pool();
    let driver = sandbox.install_with(
        "flexvol.test/disk",
        &format!(
            "backend = \"loop\"\n[pools.default]\npath = {pool:?}\nreserve = \"64Mi\"\n\
             [pools.missing]\npath = {:?}\n",
            sandbox.path("missing")
        ),
    );
    for name in ["one", "two"] {
        stdout_of(&driver, &["create", name, "--size", "320Mi"]);
    }
    let two = json_of(&driver, &["show", "two", "-o", "json"]);
    let image = pool.join("volumes").join(two["id"].as_str().unwrap());
    let newer = Command::new("setfattr")
        .args(["-n", "trusted.flexvol", "-v", "flexvol=9:future=1"])
        .arg(&image)
        .status();
    // Without setfattr the second volume is made invalid in another way.
    if !newer.is_ok_and(|status| status.success()) {
        fs::hard_link(&image, pool.join("second-name")).unwrap();
    }
    let output = run(&driver, &["list"]);
    let (table, errors) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.contains("pool missing"), "{errors}");
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(rows.len(), 3, "{table}");
    assert!(rows[0].ends_with("PROBLEM"), "{table}");
    assert!(
        rows[1].starts_with("one ") && rows[1].contains("320Mi"),
        "{table}"
    );
    assert!(rows[2].contains("broken"), "{table}");
    assert!(rows[2].contains(two["id"].as_str().unwrap()), "{table}");
    let output = run(&driver, &["list", "--pool", "default", "-o", "json"]);
    assert!(output.status.success());
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(list["volumes"][1]["error"].is_string(), "{list}");
}

fn explained(points: &Points) {
    let sandbox = sandbox();
    let driver = install(&sandbox);
    let list = json_of(
        &driver,
        &["create", "data", "--size", "400Mi", "-o", "json"],
    );
    let volume = persistent_volume(&list);
    let pod = Pod::new(&sandbox, &driver, &volume, "a");
    let explain = |size: &str| json_of(&driver, &["explain", "data", "--size", size, "-o", "json"]);
    let steps = |text: &Value, goal: &str| -> Vec<String> {
        let steps = text[goal]["steps"].as_array().unwrap();
        steps
            .iter()
            .map(|step| step.as_str().unwrap().to_owned())
            .collect()
    };
    let before = Baseline::of(&sandbox);
    let blank = explain("400Mi");
    assert_eq!(steps(&blank, "mount"), ["map", "format", "mount"]);
    assert_eq!(blank["grow"]["end"], "refused", "{blank}");
    before.expect(&sandbox, "explain changed something");

    let _ = pod.mount("rw").success();
    let mounted = explain("500Mi");
    assert_eq!(
        steps(&mounted, "grow"),
        ["mark", "grow-storage", "grow-filesystem"]
    );
    let too_much = explain("100Gi");
    assert_eq!(too_much["grow"]["end"], "refused");
    let why = too_much["grow"]["why"].as_str().unwrap();
    assert!(why.contains("the pool has"), "{why}");
    assert!(
        driver
            .call(&pod.expand_arguments(100 * GIB, GIB))
            .failure()
            .contains("to give")
    );
    let _ = driver
        .call(&pod.expand_arguments(500 << 20, 400 << 20))
        .success();
    let grown = explain("500Mi");
    assert_eq!(grown["grow"]["end"], "reached");
    assert_eq!(steps(&grown, "grow"), [""; 0]);
    points.add(4);

    // A callout holds the volume's lock all the time.
    let id = VolumeId::parse(&volume.id()).unwrap();
    let lock = lock::volume(&id, Duration::from_secs(5)).unwrap();
    let started = Instant::now();
    let locked = explain("500Mi");
    assert!(started.elapsed() < Duration::from_secs(5).max(budget().each));
    assert_eq!(locked["lockedBy"], std::process::id(), "{locked}");
    let text = stdout_of(&driver, &["explain", pod.dir().to_str().unwrap()]);
    assert!(
        text.contains("To mount it:\n  nothing is left to do"),
        "{text}"
    );
    drop(lock);
    let _ = pod.unmount().success();
}
