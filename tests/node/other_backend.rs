//! Volumes stay mounted while their driver gets a configuration of another backend, or one with a mistake.

use crate::{dir, sandbox};
use flexvol_testing::{
    Baseline, Driver, Need, Outcome, PersistentVolume, Pod, Points, Sandbox, below, tests,
};
use std::{fs, process::Command};

tests! {
    "what is mounted is unmounted after the backend was changed to dir", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")] => |points| {
            let sandbox = sandbox();
            let driver = sandbox.install("example.com/disk", false, "reserve = \"64Mi\"\n");
            unmounted(&sandbox, &driver, ("xfs", "dir"), points);
        };
    "dir: what is mounted is unmounted after the backend was changed to loop", dir::BTRFS => |points| {
            let sandbox = dir::sandbox_on("btrfs", 2048, true);
            let driver = dir::install(&sandbox, "disk", "");
            unmounted(&sandbox, &driver, ("", "loop"), points);
        };
    "what is mounted is unmounted whatever mistake the configuration has", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")] => |points| {
            let sandbox = sandbox();
            let driver = sandbox.install("example.com/disk", false, "reserve = \"64Mi\"\n");
            mistaken(&sandbox, &driver, "xfs", points);
        };
    "dir: what is mounted is unmounted whatever mistake the configuration has", dir::BTRFS => |points| {
            let sandbox = dir::sandbox_on("btrfs", 2048, true);
            let driver = dir::install(&sandbox, "disk", "");
            mistaken(&sandbox, &driver, "", points);
        };
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
        // The first call may report that not all data was written, the second one may not.
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

fn mistaken(sandbox: &Sandbox, driver: &Driver, filesystem: &'static str, points: &Points) {
    let before = Baseline::of(sandbox);
    let volume = PersistentVolume::provision(driver, "pv", filesystem, 320 << 20);
    let (pod, other) = (
        Pod::new(sandbox, driver, &volume, "a"),
        Pod::new(sandbox, driver, &volume, "b"),
    );
    let own = driver.executable().with_file_name(".disk.toml");
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
        let says = |arguments: &[&str]| {
            let reply = driver.call(arguments).failure();
            assert!(reply.contains("configuration"), "{what}: {reply}");
        };
        says(&["delete", &volume.json("rw")]);
        says(&[
            "expandfs",
            &volume.json("rw"),
            "",
            dir,
            "402653184",
            "335544320",
        ]);
        let refused = other.mount("rw").failure();
        assert!(refused.contains("configuration"), "{what}: {refused}");
        driver.call(&["detach", "pv", "node"]).success();
        for _ in 0..2 {
            pod.unmount().success();
        }
        // What is not the driver's stays.
        fs::create_dir_all(dir).unwrap();
        by_hand("mount", &["-t", "tmpfs", "stranger", dir]);
        driver.call(&["unmountdevice", dir]).failure();
        by_hand("umount", &[dir]);
        fs::write(&own, &right).unwrap();
        pod.mount("rw").success();
        fs::write(&own, b"= 1").unwrap();
        driver.call(&["unmountdevice", dir]).success();
        fs::write(&own, &right).unwrap();
        points.add(1);
    }
    driver.call(&["delete", &volume.json("rw")]).success();
    before.expect(sandbox, "deleted");
}

fn by_hand(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}");
}

fn unmounted(
    sandbox: &Sandbox,
    driver: &Driver,
    (filesystem, other): (&'static str, &str),
    points: &Points,
) {
    let before = Baseline::of(sandbox);
    let volume = PersistentVolume::provision(driver, "pv", filesystem, 320 << 20);
    let pods = ["a", "b"].map(|uid| Pod::new(sandbox, driver, &volume, uid));
    for pod in &pods {
        pod.mount("rw").success();
    }
    let pool = sandbox.pool();
    let text = format!("backend = {other:?}\n[pools.default]\npath = {pool:?}\n");
    let own = driver.executable().with_file_name(".disk.toml");
    let text_before = std::fs::read_to_string(&own).unwrap();
    let _ = sandbox.install_with(driver.name(), &text);
    for pod in &pods {
        // Twice: the caller may not have heard the first answer.
        pod.unmount().success();
        pod.unmount().success();
        points.add(1);
    }
    let _ = sandbox.install_with(driver.name(), &text_before);
    driver.call(&["delete", &volume.json("rw")]).success();
    before.expect(sandbox, "deleted by its own backend");
}
