//! Pods that share a volume, mount a part of it, own it as another user, or vanish.

use crate::{
    lab::{BLOCK, DISK},
    objects::pod,
    scenario::Scenario,
};
use flexvol_testing::{Need, Points, tests};
use serde_json::{Value, json};

tests! {
    "a read-only pod cannot write what a pod beside it can", &[Need::Root] => read_only;
    "two pods see each other's writes, and the end of one leaves the other alone", &[Need::Root]
        => together;
    "a volume grows under pods that see a file and a directory of it", &[Need::Root] => parts;
    "a pod's group owns the files, and is given them again only where asked", &[Need::Root]
        => group;
    "what a pod leaves that is deleted by force is cleaned up, and the next one has its data", &[Need::Root]
        => by_force;
}

/// The same pod with a read-only volume.
fn reading(mut pod: Value) -> Value {
    pod["spec"]["volumes"][0]["persistentVolumeClaim"]["readOnly"] = true.into();
    pod
}

fn read_only(_: &Points) {
    for driver in [DISK, BLOCK] {
        let scenario = Scenario::begin();
        scenario.volume(driver, "shared", 320);
        let refuses = |reader: &Value| {
            let said = scenario.exec_fails(reader, "touch /data/mine");
            assert!(said.contains("Read-only file system"), "{said}");
            let mounts = scenario.mounts_below(&scenario.directory_of(reader));
            assert_eq!(mounts.len(), 1, "{mounts:?}");
            assert!(mounts[0].read_only, "{mounts:?}");
        };
        let first = reading(pod("first-reader", "shared"));
        scenario.run_pod(&first);
        refuses(&first);
        let writer = pod("writer", "shared");
        scenario.run_pod(&writer);
        scenario.exec(&writer, "echo written >/data/file");
        assert_eq!(scenario.exec(&first, "cat /data/file"), "written\n");
        refuses(&first);
        let second = reading(pod("second-reader", "shared"));
        scenario.run_pod(&second);
        refuses(&second);
        scenario.delete_pod(&first);
        scenario.exec(&writer, "echo more >>/data/file");
        assert_eq!(scenario.exec(&second, "cat /data/file"), "written\nmore\n");
        scenario.delete_pod(&writer);
        refuses(&second);
        for (name, access) in [("first-reader", "ro"), ("writer", "rw")] {
            let asked = format!("\"kubernetes.io/readwrite\":\"{access}\"");
            let mounts = scenario.calls(&["mount"], &format!("pod.name\":\"{name}\""));
            assert!(!mounts.is_empty());
            assert!(
                mounts.iter().all(|mount| mount.mentions(&asked)),
                "{mounts:?}"
            );
        }
        scenario.end();
    }
}

fn together(_: &Points) {
    for driver in [DISK, BLOCK] {
        let scenario = Scenario::begin();
        scenario.volume(driver, "both", 320);
        let (left, right) = (pod("left", "both"), pod("right", "both"));
        scenario.apply(&[left.clone(), right.clone()]);
        scenario.wait_running(&left);
        scenario.wait_running(&right);
        let device = |pod: &Value| {
            let mounts = scenario.mounts_below(&scenario.directory_of(pod));
            assert_eq!(mounts.len(), 1, "{mounts:?}");
            mounts[0].device.clone()
        };
        assert_eq!(device(&left), device(&right));
        scenario.exec(&left, "echo left >/data/left");
        scenario.exec(&right, "echo right >/data/right");
        assert_eq!(scenario.exec(&right, "cat /data/left"), "left\n");
        assert_eq!(scenario.exec(&left, "cat /data/right"), "right\n");
        let gone = scenario.directory_of(&left);
        scenario.delete_pod(&left);
        let unmounted = || scenario.mounts_below(&gone).is_empty();
        scenario.eventually("the deleted pod's mount to go", unmounted);
        scenario.exec(&right, "echo still >>/data/right && rm /data/left && sync");
        assert_eq!(scenario.exec(&right, "cat /data/*"), "right\nstill\n");
        scenario.end();
    }
}

fn parts(_: &Points) {
    let scenario = Scenario::begin();
    scenario.volume(DISK, "parts", 320);
    let mut app = pod("app", "parts");
    let prepare = "mkdir /data/work && echo setting=1 >/data/app.conf";
    app["spec"]["initContainers"] = json!([{
        "name": "prepare",
        "image": "busybox:1.35",
        "command": ["sh", "-c", prepare],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }]);
    app["spec"]["containers"][0]["volumeMounts"] = json!([
        {"name": "data", "mountPath": "/etc/app.conf", "subPath": "app.conf"},
        {"name": "data", "mountPath": "/work", "subPath": "work"},
        {"name": "data", "mountPath": "/new", "subPath": "made/by/kubelet"},
    ]);
    scenario.run_pod(&app);
    assert_eq!(scenario.exec(&app, "cat /etc/app.conf"), "setting=1\n");
    scenario.exec(
        &app,
        "echo setting=2 >/etc/app.conf && touch /work/a /new/b",
    );
    let blocks = || -> u64 {
        let text = scenario.exec(&app, "stat -f -c %b /work");
        assert_eq!(scenario.exec(&app, "stat -f -c %b /etc/app.conf"), text);
        text.trim().parse().unwrap()
    };
    let before = blocks();
    scenario.ask_for("parts", 640);
    scenario.wait_grown("parts", 640);
    assert_eq!((blocks() - before) * 4096, 320 << 20);
    scenario.exec(&app, "touch /work/afterwards");
    let directory = scenario.directory_of(&app);
    scenario.delete_pod(&app);
    let gone = || !scenario.is_in_node(&directory);
    scenario.eventually("the pod's directory to go", gone);
    let whole = pod("whole", "parts");
    scenario.run_pod(&whole);
    assert_eq!(
        scenario.exec(&whole, "cd /data && find * -type f | sort && cat app.conf"),
        "app.conf\nmade/by/kubelet/b\nwork/a\nwork/afterwards\nsetting=2\n"
    );
    scenario.end();
}

/// A pod of another user, with an fsGroup.
fn of_group(name: &str, policy: &str) -> Value {
    let mut pod = pod(name, "grouped");
    pod["spec"]["securityContext"] = json!({
        "runAsUser": 1000,
        "runAsGroup": 3000,
        "fsGroup": 2000,
        "fsGroupChangePolicy": policy,
    });
    pod
}

fn group(_: &Points) {
    let scenario = Scenario::begin();
    scenario.volume(DISK, "grouped", 320);
    let groups = |pod: &Value| scenario.exec(pod, "cd /data && stat -c '%n %u %g' . mine other");
    let first = of_group("first", "Always");
    scenario.run_pod(&first);
    scenario.exec(&first, "touch /data/mine /data/other");
    assert_eq!(
        groups(&first),
        ". 0 2000\nmine 1000 2000\nother 1000 2000\n"
    );
    scenario.delete_pod(&first);
    // The group of one file changes; the root directory keeps the pod's group.
    let root = pod("root", "grouped");
    scenario.run_pod(&root);
    scenario.exec(&root, "chgrp 77 /data/other");
    scenario.delete_pod(&root);
    for (name, policy, other) in [("second", "OnRootMismatch", 77), ("third", "Always", 2000)] {
        let next = of_group(name, policy);
        scenario.run_pod(&next);
        assert_eq!(
            groups(&next),
            format!(". 0 2000\nmine 1000 2000\nother 1000 {other}\n"),
            "{policy}"
        );
        scenario.exec(&next, "echo written >>/data/mine");
        scenario.delete_pod(&next);
    }
    let told = scenario.calls(&["mount"], "mounterArgs.FsGroup\":\"2000\"");
    assert!(told.len() >= 3, "{told:?}");
    scenario.end();
}

fn by_force(_: &Points) {
    for driver in [DISK, BLOCK] {
        let scenario = Scenario::begin();
        scenario.volume(driver, "forced", 320);
        let first = pod("first", "forced");
        scenario.run_pod(&first);
        scenario.exec(&first, "echo kept >/data/file");
        let directory = scenario.directory_of(&first);
        scenario
            .lab()
            .kubectl(&["delete", "pod", "first", "--force", "--grace-period=0"]);
        let second = pod("second", "forced");
        scenario.run_pod(&second);
        assert_eq!(scenario.exec(&second, "cat /data/file"), "kept\n");
        let gone =
            || !scenario.is_in_node(&directory) && scenario.mounts_below(&directory).is_empty();
        scenario.eventually("what the pod left to go", gone);
        scenario.exec(&second, "echo more >>/data/file");
        assert_eq!(scenario.exec(&second, "cat /data/file"), "kept\nmore\n");
        scenario.end();
    }
}
