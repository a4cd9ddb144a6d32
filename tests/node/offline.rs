//! Drivers that grow a volume only while no pod uses it.

use crate::{
    lifecycle::{ALL, MIB, measured, size_of_filesystem},
    sandbox,
};
use flexvol_testing::{Driver, PersistentVolume, Pod, Points, Sandbox, eventually, tests};
use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Child, Command},
    time::Duration,
};

tests! {
    "offline growth waits until no pod uses the volume", ALL => offline;
    "by offline policy no mount grows a file system that another pod has", ALL
        => grows_under_nobody;
    "by offline policy a growth that was done before is told to every pod", ALL => done_before;
    "by offline policy a copy of the call's own mount is no other pod", ALL => copied;
}

fn careful(sandbox: &Sandbox) -> Driver {
    sandbox.install_with(
        "flexvol.test/careful",
        &format!(
            "backend = \"loop\"\ngrowth = \"offline\"\n[pools.default]\npath = {:?}\nreserve = \"64Mi\"\n",
            sandbox.pool()
        ),
    )
}

fn grows_under_nobody(_: &Points) {
    let sandbox = sandbox();
    let driver = careful(&sandbox);
    let volume = PersistentVolume::provision(&driver, "careful", "xfs", 300 * MIB);
    let pods = ["one", "two"].map(|uid| Pod::new(&sandbox, &driver, &volume, uid));
    pods[0].mount("rw").success();
    let before = size_of_filesystem(pods[0].dir());
    let [new, old] = [400 * MIB, 300 * MIB].map(|size| size.to_string());
    let (json, dir) = (volume.json("rw"), pods[0].dir().to_str().unwrap());
    driver
        .call(&["expandvolume", &json, dir, &new, &old])
        .success();
    pods[1].mount("rw").success();
    pods[1].mount("rw").success();
    assert_eq!(size_of_filesystem(pods[0].dir()), before);
    pods[0].unmount().success();
    // The one pod that has it is the one that asks.
    pods[1].mount("rw").success();
    assert!(size_of_filesystem(pods[1].dir()) > before + 90 * MIB);
    pods[1].unmount().success();
}

fn done_before(_: &Points) {
    let sandbox = sandbox();
    let driver = careful(&sandbox);
    let volume = PersistentVolume::provision(&driver, "careful", "xfs", 300 * MIB);
    let pods = ["one", "two"].map(|uid| Pod::new(&sandbox, &driver, &volume, uid));
    let [new, old] = [400 * MIB, 300 * MIB].map(|size| size.to_string());
    let (json, dir) = (volume.json("rw"), pods[0].dir().to_str().unwrap());
    driver
        .call(&["expandvolume", &json, dir, &new, &old])
        .success();
    // The first mount of all makes the file system as large.
    for pod in &pods {
        pod.mount("rw").success();
    }
    for pod in &pods {
        let told = driver.call(&pod.expand_arguments(400 * MIB, 300 * MIB));
        assert_eq!(measured(&told.success()), 400 * MIB);
    }
    driver
        .call(&pods[0].expand_arguments(500 * MIB, 400 * MIB))
        .failure();
    for pod in &pods {
        pod.unmount().success();
    }
}

/// A namespace that has the node's kubelet directory below a directory of its own, as a pod that sees the whole
/// node has it.
struct Observer(Child);

impl Observer {
    fn of(sandbox: &Sandbox) -> Observer {
        let kubelet = sandbox.kubelet_root();
        let view = sandbox.disk().join("host");
        let seen = view.join(kubelet.strip_prefix("/").unwrap());
        let up = sandbox.disk().join("up");
        let shared = ["--make-shared", "--bind"];
        let mut mount = Command::new("mount");
        mount.args(shared).args([&kubelet, &kubelet]);
        assert!(mount.status().unwrap().success());
        fs::create_dir_all(&seen).unwrap();
        let script = format!(
            "mount --rbind {0:?} {1:?} && touch {2:?} && exec sleep 600",
            kubelet, seen, up
        );
        let words = ["--mount", "--propagation", "slave", "bash", "-c", &script];
        let child = Command::new("unshare").args(words).spawn().unwrap();
        let observer = Observer(child);
        eventually(Duration::from_secs(20), "the node is seen", || up.exists());
        observer
    }

    fn sees(&self, dir: &Path) -> bool {
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", self.0.id())).unwrap();
        let below = format!("/host{}", dir.display());
        mounts.lines().any(|line| line.contains(&below))
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn copied(_: &Points) {
    let sandbox = sandbox();
    let driver = careful(&sandbox);
    let observer = Observer::of(&sandbox);
    let volume = PersistentVolume::provision(&driver, "careful", "xfs", 300 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    assert!(observer.sees(pod.dir()));
    let grown = driver.call(&pod.expand_arguments(400 * MIB, 300 * MIB));
    assert_eq!(measured(&grown.success()), 400 * MIB);
    // Another pod's is one there, too.
    let other = Pod::new(&sandbox, &driver, &volume, "two");
    other.mount("rw").success();
    driver
        .call(&pod.expand_arguments(500 * MIB, 400 * MIB))
        .failure();
    other.unmount().success();
    // Kubelet may name its directory by a link.
    let (root, link) = (sandbox.kubelet_root(), sandbox.disk().join("link"));
    symlink(&root, &link).unwrap();
    let (root, link) = (root.to_str().unwrap(), link.to_str().unwrap());
    let by_link: Vec<_> = pod
        .expand_arguments(500 * MIB, 400 * MIB)
        .iter()
        .map(|word| word.replace(root, link))
        .collect();
    assert_eq!(measured(&driver.call(&by_link).success()), 500 * MIB);
    pod.unmount().success();
}

fn offline(_: &Points) {
    let sandbox = sandbox();
    let driver = careful(&sandbox);
    let volume = PersistentVolume::provision(&driver, "careful", "xfs", 300 * MIB);
    let pods = ["one", "two"].map(|uid| Pod::new(&sandbox, &driver, &volume, uid));
    for pod in &pods {
        pod.mount("rw").success();
    }
    let image = volume.image(&sandbox);
    let refused = driver
        .call(&pods[0].expand_arguments(400 * MIB, 300 * MIB))
        .failure();
    assert!(
        refused.contains("300Mi") && refused.contains("400Mi") && refused.contains("stop"),
        "{refused}"
    );
    assert_eq!(image.metadata().unwrap().len(), 300 * MIB, "nothing grew");
    pods[1].unmount().success();
    // Kubelet asks after it mounted and before the containers start.
    let grown = driver
        .call(&pods[0].expand_arguments(400 * MIB, 300 * MIB))
        .success();
    assert_eq!(measured(&grown), 400 * MIB);
    pods[0].unmount().success();
}
