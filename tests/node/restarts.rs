//! Volumes when the node, kubelet or a disk goes away and comes back.

use crate::{
    node::{Backend, LOOP, MIB, Node, fill, measured, size_of_filesystem},
    story::stories,
};
use flexvol_testing::{Points, Sandbox, below, eventually, tests};
use std::{fs, path::PathBuf, time::Duration};

stories! {
    STORIES:
    "expandfs finds the volume by its directory after a kubelet restart",
        [loop xfs ext4 btrfs hello_block hello_directory lvm] => bare_json;
    "while a pool is missing everything is refused, but volumes are unmounted",
        [loop xfs ext4 btrfs hello_block hello_directory] => missing_pool;
}

tests! {
    "a volume survives a reboot, its growth half done", LOOP => reboot;
    "volumes that swap loop numbers are not mixed up", LOOP => swapped_loops;
}

/// Simulates a reboot: marks and images stay, and all kernel state is lost.
fn lose_power(sandbox: &Sandbox) {
    for mount in below(&sandbox.kubelet_root()).iter().rev() {
        nix::mount::umount2(&mount.point, nix::mount::MntFlags::MNT_DETACH).unwrap();
    }
    // A lazily unmounted mount goes after its last user.
    eventually(Duration::from_secs(2), "no loops after the reboot", || {
        sandbox.loops().is_empty()
    });
}

fn reboot(_: &Points) {
    let node = Node::new(Backend::Loop);
    let volume = node.volume("survivor");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let content = fill(pod.dir(), "before");
    // Only the storage grew, as when the power fails during expandfs.
    node.expand_volume(&volume, 500 * MIB).success();
    assert!(size_of_filesystem(pod.dir()) < 300 * MIB);
    lose_power(&node.sandbox);
    pod.mount("rw").success();
    assert!(
        size_of_filesystem(pod.dir()) > 400 * MIB,
        "grown at the next mount"
    );
    assert_eq!(fs::read(pod.dir().join("before")).unwrap(), content);
    pod.unmount().success();
}

fn bare_json(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    let [volume, other] = ["bare", "other"].map(|name| node.volume(name));
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let expand = |json: &str| {
        let mut arguments = pod.expand_arguments(node.grown(), node.size());
        json.clone_into(&mut arguments[1]);
        node.driver.call(&arguments)
    };
    let bare = [
        r#"{"kubernetes.io/fsType":"","kubernetes.io/pvOrVolumeName":"bare","kubernetes.io/readwrite":"rw"}"#,
        r#"{"kubernetes.io/readwrite":"rw"}"#,
    ];
    for json in bare {
        assert_eq!(measured(&expand(json).success()), node.growth(node.grown()));
        points.add(1);
    }
    let wrong = expand(&other.json("rw"));
    assert!(wrong.failure().contains("another volume"), "{wrong}");
    if backend != Backend::HelloDirectory {
        assert_eq!(node.sizes()[&other.id()], node.size());
    }
    pod.unmount().success();
    for json in bare {
        let gone = expand(json);
        assert!(gone.failure().contains("no handle"), "{gone}");
        points.add(1);
    }
}

fn missing_pool(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    let volume = node.volume("data");
    let pods = ["one", "two"].map(|uid| node.pod_of(&volume, uid));
    pods[0].mount("rw").success();
    let (pool, away) = (node.sandbox.pool(), node.sandbox.disk().join("away"));
    fs::rename(&pool, &away).unwrap();
    fs::create_dir(&pool).unwrap();
    for refused in [
        pods[1].mount("rw"),
        node.delete(&volume),
        node.grow(&pods[0], node.grown()),
        node.driver.call(&["capacity", "{}"]),
    ] {
        assert!(refused.failure().contains("not mounted"), "{refused}");
        points.add(1);
    }
    pods[0].unmount().success();
    assert_eq!(node.sandbox.loops(), []);
    fs::remove_dir(&pool).unwrap();
    fs::rename(&away, &pool).unwrap();
    pods[1].mount("rw").success();
    pods[1].unmount().success();
}

fn swapped_loops(_: &Points) {
    let node = Node::new(Backend::Loop);
    let volumes = ["first", "second"].map(|name| node.volume(name));
    let pods = [0, 1].map(|n| node.pod(&volumes[n]));
    let device = |dir: &PathBuf| {
        let mounted = below(dir);
        mounted.first().map(|mount| mount.device.clone())
    };
    for pod in &pods {
        pod.mount("rw").success();
        fs::write(
            pod.dir().join("name"),
            pod.dir().file_name().unwrap().as_encoded_bytes(),
        )
        .unwrap();
    }
    let before = pods.each_ref().map(|pod| device(pod.dir()));
    // Other processes use loop devices too, and may get one of the two numbers in between.
    let swapped = (0..50).any(|_| {
        pods.iter().for_each(|pod| drop(pod.unmount().success()));
        pods[1].mount("rw").success();
        pods[0].mount("rw").success();
        before != pods.each_ref().map(|pod| device(pod.dir()))
    });
    assert!(swapped, "the numbers were meant to be swapped");
    for pod in &pods {
        let name = fs::read(pod.dir().join("name")).unwrap();
        assert_eq!(name, pod.dir().file_name().unwrap().as_encoded_bytes());
        pod.unmount().success();
        pod.unmount().success();
    }
    assert_eq!(node.sandbox.loops(), []);
}
