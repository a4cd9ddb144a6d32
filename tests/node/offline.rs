//! Drivers that grow a volume only while no pod uses it.

use crate::{
    node::{Backend, LOOP, MIB, Node, measured, size_of_filesystem},
    story::stories,
};
use flexvol_testing::{Points, Sandbox, eventually, tests};
use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Child, Command},
    time::Duration,
};

tests! {
    "offline growth waits until no pod uses the volume", LOOP => offline;
    "by offline policy no mount grows a file system that another pod has", LOOP
        => grows_under_nobody;
    "by offline policy a growth that was done before is told to every pod", LOOP => done_before;
    "by offline policy a copy of the call's own mount is no other pod", LOOP => copied;
}

stories! {
    STORIES:
    "by offline policy a limit that was raised is told to every pod", [btrfs] => raised_before;
}

fn careful(backend: Backend) -> Node {
    let node = Node::new(backend);
    let text = fs::read_to_string(node.configuration()).unwrap();
    let text = format!("growth = \"offline\"\n{text}");
    let driver = node
        .sandbox
        .install_with(&format!("example.com/{}", backend.driver()), &text);
    Node { driver, ..node }
}

fn grows_under_nobody(_: &Points) {
    let node = careful(Backend::Loop);
    let volume = node.volume("careful");
    let pods = ["one", "two"].map(|uid| node.pod_of(&volume, uid));
    pods[0].mount("rw").success();
    let before = size_of_filesystem(pods[0].dir());
    node.expand_volume(&volume, 400 * MIB).success();
    pods[1].mount("rw").success();
    pods[1].mount("rw").success();
    assert_eq!(size_of_filesystem(pods[0].dir()), before);
    pods[0].unmount().success();
    // Only the calling pod uses it.
    pods[1].mount("rw").success();
    assert!(size_of_filesystem(pods[1].dir()) > before + 90 * MIB);
    pods[1].unmount().success();
}

fn raised_before(backend: Backend, _: &Points) {
    let node = careful(backend);
    let volume = node.volume("careful");
    let pods = ["one", "two"].map(|uid| node.pod_of(&volume, uid));
    pods[0].mount("rw").success();
    node.expand_volume(&volume, node.grown()).success();
    pods[1].mount("rw").success();
    for pod in &pods {
        let told = node.grow(pod, node.grown());
        assert_eq!(measured(&told.success()), node.grown());
    }
    let more = pods[0].expand_arguments(node.grown() + 16 * MIB, node.grown());
    let refused = node.driver.call(&more).failure();
    assert!(refused.contains("stop the pod"), "{refused}");
    for pod in &pods {
        pod.unmount().success();
    }
}

fn done_before(_: &Points) {
    let node = careful(Backend::Loop);
    let volume = node.volume("careful");
    let pods = ["one", "two"].map(|uid| node.pod_of(&volume, uid));
    node.expand_volume(&volume, 400 * MIB).success();
    // The first mount makes the file system in the new size.
    for pod in &pods {
        pod.mount("rw").success();
    }
    for pod in &pods {
        let told = node.grow(pod, 400 * MIB);
        assert_eq!(measured(&told.success()), 400 * MIB);
    }
    node.driver
        .call(&pods[0].expand_arguments(500 * MIB, 400 * MIB))
        .failure();
    for pod in &pods {
        pod.unmount().success();
    }
}

/// A mount namespace that has kubelet's directory also below other directories, like a pod that sees the whole node or
/// saves volumes.
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
        let pods = sandbox.disk().join("host_pods");
        fs::create_dir_all(&seen).unwrap();
        fs::create_dir_all(&pods).unwrap();
        fs::create_dir_all(kubelet.join("pods")).unwrap();
        let script = format!(
            "mount --rbind {kubelet:?} {seen:?} && mount --rbind {:?} {pods:?} && touch {up:?} && exec sleep 600",
            kubelet.join("pods")
        );
        let words = ["--mount", "--propagation", "slave", "bash", "-c", &script];
        let child = Command::new("unshare").args(words).spawn().unwrap();
        let observer = Observer(child);
        eventually(Duration::from_secs(20), "the node is seen", || up.exists());
        observer
    }

    fn sees(&self, dir: &Path) -> bool {
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", self.0.id())).unwrap();
        let (_, of_pod) = dir.to_str().unwrap().rsplit_once("/pods/").unwrap();
        let seen = [
            format!("/host{}", dir.display()),
            format!("/host_pods/{of_pod}"),
        ];
        seen.iter().all(|place| mounts.contains(place))
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn copied(_: &Points) {
    let node = careful(Backend::Loop);
    let observer = Observer::of(&node.sandbox);
    let volume = node.volume("careful");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    assert!(observer.sees(pod.dir()));
    let grown = node.grow(&pod, 400 * MIB);
    assert_eq!(measured(&grown.success()), 400 * MIB);
    // The namespace also has a copy of the other pod's mount.
    let other = node.pod_of(&volume, "two");
    other.mount("rw").success();
    node.driver
        .call(&pod.expand_arguments(500 * MIB, 400 * MIB))
        .failure();
    other.unmount().success();
    // kubelet may refer to its directory by a symbolic link.
    let (root, link) = (
        node.sandbox.kubelet_root(),
        node.sandbox.disk().join("link"),
    );
    symlink(&root, &link).unwrap();
    let (root, link) = (root.to_str().unwrap(), link.to_str().unwrap());
    let by_link: Vec<_> = pod
        .expand_arguments(500 * MIB, 400 * MIB)
        .iter()
        .map(|word| word.replace(root, link))
        .collect();
    assert_eq!(measured(&node.driver.call(&by_link).success()), 500 * MIB);
    pod.unmount().success();
}

fn offline(_: &Points) {
    let node = careful(Backend::Loop);
    let volume = node.volume("careful");
    let pods = ["one", "two"].map(|uid| node.pod_of(&volume, uid));
    for pod in &pods {
        pod.mount("rw").success();
    }
    let image = volume.image(&node.sandbox);
    let refused = node.grow(&pods[0], 400 * MIB).failure();
    assert!(
        refused.contains("300Mi") && refused.contains("400Mi") && refused.contains("stop"),
        "{refused}"
    );
    assert_eq!(image.metadata().unwrap().len(), 300 * MIB, "nothing grew");
    pods[1].unmount().success();
    // kubelet asks after the mount and before the containers start.
    let grown = node.grow(&pods[0], 400 * MIB).success();
    assert_eq!(measured(&grown), 400 * MIB);
    pods[0].unmount().success();
}
