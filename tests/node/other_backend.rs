//! The driver's configuration gets another backend, or a mistake, while volumes are mounted.

use crate::{
    node::{Backend, Node},
    sandbox,
    story::stories,
};
use flexvol_testing::{Baseline, Need, Outcome, PersistentVolume, Pod, Points, below, tests};
use std::{fs, process::Command};

stories! {
    STORIES:
    "what is mounted is unmounted after the backend was changed", [loop btrfs] => unmounted;
    "what is mounted is unmounted whatever mistake the configuration has", [loop btrfs] => mistaken;
}

tests! {
    "a file system that has shut down is unmounted whatever the configuration says", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs"), Need::Tool("xfs_io", "xfsprogs")]
        => shut_down;
}

fn shut_down(points: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("example.com/disk", false, "reserve = \"64Mi\"\n");
    let before = Baseline::of(&sandbox);
    let volume = PersistentVolume::provision(&driver, "pv", "xfs", 320 << 20);
    let pod = Pod::new(&sandbox, &driver, &volume, "a");
    let own = driver.executable().with_file_name(".disk.toml");
    let right = fs::read(&own).unwrap();
    let another = format!(
        "backend = \"dir\"\n[pools.default]\npath = {:?}\n",
        sandbox.pool()
    );
    for (what, text) in [("another backend", another.as_str()), ("a mistake", "= 1")] {
        pod.mount("rw").success();
        by_hand(
            "xfs_io",
            &["-x", "-c", "shutdown", pod.dir().to_str().unwrap()],
        );
        fs::write(&own, text).unwrap();
        // The first call may report lost writes, the second may not.
        let first = pod.unmount();
        if first.outcome() != Outcome::Success {
            let reply = first.failure();
            assert!(reply.contains("not all of its data"), "{what}: {reply}");
        }
        assert_eq!(below(pod.dir()), [], "{what}");
        pod.unmount().success();
        fs::write(&own, &right).unwrap();
        points.add(1);
    }
    driver.call(&["delete", &volume.json("rw")]).success();
    before.expect(&sandbox, "deleted");
}

fn mistaken(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    // The backend does not follow from this driver's name.
    let driver = node.install_as("disk", "");
    let node = Node { driver, ..node };
    let before = node.inventory();
    let volume = node.volume("pv");
    let (pod, other) = (node.pod(&volume), node.pod_of(&volume, "b"));
    let own = node.configuration();
    let right = fs::read(&own).unwrap();
    let append = |text: &[u8]| [&right, text].concat();
    let mistakes = [
        ("a key of another version", append(b"\ncompress = true\n")),
        ("half of the file", right[..right.len() - 3].to_vec()),
        ("no UTF-8", append(b"# \xff\n")),
        ("zeros", vec![0; right.len()]),
        (
            "a backend of another version",
            b"backend = \"zfs\"\n".to_vec(),
        ),
        ("no pools, which its name does not tell", Vec::new()),
    ];
    for (what, text) in mistakes {
        pod.mount("rw").success();
        fs::write(&own, text).unwrap();
        let dir = pod.dir().to_str().unwrap();
        for refused in [
            node.delete(&volume),
            node.grow(&pod, node.grown()),
            other.mount("rw"),
        ] {
            assert!(
                refused.failure().contains("configuration"),
                "{what}: {refused}"
            );
        }
        node.driver.call(&["detach", "pv", "node"]).success();
        for _ in 0..2 {
            pod.unmount().success();
        }
        // A foreign mount stays.
        fs::create_dir_all(dir).unwrap();
        by_hand("mount", &["-t", "tmpfs", "stranger", dir]);
        node.driver.call(&["unmountdevice", dir]).failure();
        by_hand("umount", &[dir]);
        fs::write(&own, &right).unwrap();
        pod.mount("rw").success();
        fs::write(&own, b"= 1").unwrap();
        node.driver.call(&["unmountdevice", dir]).success();
        fs::write(&own, &right).unwrap();
        points.add(1);
    }
    node.delete(&volume).success();
    node.expect(&before, "deleted");
}

fn by_hand(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}");
}

fn unmounted(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    let before = node.inventory();
    let volume = node.volume("pv");
    let pods = ["a", "b"].map(|uid| node.pod_of(&volume, uid));
    for pod in &pods {
        pod.mount("rw").success();
    }
    let other = match backend.is_directory() {
        true => Backend::Loop,
        false => Backend::Dir("btrfs"),
    };
    let name = node.driver.name().rsplit('/').next().unwrap();
    let _ = other.install(&node.sandbox, name, false, "");
    for pod in &pods {
        // Twice, because the caller may have missed the first reply.
        pod.unmount().success();
        pod.unmount().success();
        points.add(1);
    }
    node.install("");
    node.delete(&volume).success();
    node.expect(&before, "deleted by its own backend");
}
