//! The life of a volume that kubelet attaches to the node before pods get it.

use super::{ALL, MIB, fill, measured};
use crate::sandbox;
use flexvol_testing::{Baseline, Outcome, PersistentVolume, Pod, Points, below, request, tests};
use std::fs;

tests! {
    "an attached volume is shared by pods and leaves nothing", ALL => attached;
    "a stranger's pod attaches a blank volume, and its owner's file system is made", ALL
        => attached_by_a_stranger;
    "of two names of an attached volume only one is mounted for the node", ALL => attached_twice;
}

fn attached(_: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("flexvol.test/block", true, "reserve = \"64Mi\"");
    let baseline = Baseline::of(&sandbox);
    let volume = PersistentVolume::provision(&driver, "block", "xfs", 300 * MIB);
    let json = volume.json("rw");
    let device = driver
        .call(&["attach", &json, "node1"])
        .success()
        .text("device");
    assert_eq!(device, format!("/run/flexvol/volumes/{}", volume.id()));
    let again = driver.call(&["waitforattach", &device, &json]).success();
    assert_eq!(again.text("device"), device);
    let attached = driver.call(&["isattached", &json, "node1"]);
    assert_eq!(attached.outcome(), Outcome::NotSupported);
    let global = sandbox
        .kubelet_root()
        .join("plugins/kubernetes.io/flexvolume/flexvol.test/block/mounts/block");
    fs::create_dir_all(&global).unwrap();
    let global = global.to_str().unwrap();
    driver
        .call(&["mountdevice", global, "/dev/null", &json])
        .success();
    let pods = ["one", "two"].map(|uid| Pod::new(&sandbox, &driver, &volume, uid));
    pods[0].mount("ro").success();
    pods[1].mount("rw").success();
    let content = fill(pods[1].dir());
    assert_eq!(fs::read(pods[0].dir().join("before")).unwrap(), content);
    for dir in [global, pods[1].dir().to_str().unwrap()] {
        let size = if dir == global { 400 } else { 500 };
        let grown = driver
            .call(&[
                "expandfs",
                &json,
                &device,
                dir,
                &(size * MIB).to_string(),
                "314572800",
            ])
            .success();
        assert_eq!(measured(&grown), size * MIB);
    }
    for pod in &pods {
        pod.unmount().success();
    }
    driver.call(&["unmountdevice", global]).success();
    driver.call(&["unmountdevice", global]).success();
    driver.call(&["detach", "block", "node1"]).success();
    fs::remove_dir(global).unwrap();
    driver.call(&["delete", &json]).success();
    baseline.expect(&sandbox, "the volume was detached and deleted");
}

/// A pod of another namespace knows the handle, and asks for another file system than the owner.
fn attached_by_a_stranger(points: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("flexvol.test/block", true, "reserve = \"64Mi\"");
    let baseline = Baseline::of(&sandbox);
    let global = sandbox
        .kubelet_root()
        .join("plugins/kubernetes.io/flexvolume/flexvol.test/block/mounts/block");
    fs::create_dir_all(&global).unwrap();
    let dir = global.to_str().unwrap();
    let made = |volume: PersistentVolume, strange: &'static str| {
        let stranger = PersistentVolume {
            filesystem: strange,
            ..volume.clone()
        };
        let mount =
            |volume: &PersistentVolume| driver.call(&["mountdevice", dir, "", &volume.json("rw")]);
        let refused = mount(&stranger).failure();
        assert!(refused.contains("was made for"), "{refused}");
        mount(&volume).success();
        let pod = Pod::new(&sandbox, &driver, &volume, "one");
        pod.mount("rw").success();
        pod.unmount().success();
        driver.call(&["unmountdevice", dir]).success();
        driver.call(&["delete", &volume.json("rw")]).success();
        points.add(1);
    };
    let class = PersistentVolume::provision(&driver, "class", "ext4", 300 * MIB);
    made(class, "xfs");
    // The class says none, and the pool chooses.
    let any = driver
        .call(&["provision", &request("any", 300 * MIB)])
        .success();
    made(PersistentVolume::from_reply("any", "xfs", &any), "ext4");
    fs::remove_dir(&global).unwrap();
    baseline.expect(&sandbox, "deleted");
}

/// Two persistent volumes of one handle, or one and an inline volume: kubelet would wait for ever
/// for the end of either of two mounts before it ends the other.
fn attached_twice(_: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("flexvol.test/block", true, "reserve = \"64Mi\"");
    let baseline = Baseline::of(&sandbox);
    let volume = PersistentVolume::provision(&driver, "block", "xfs", 300 * MIB);
    let json = volume.json("rw");
    let globals = ["block", "copy"].map(|name| {
        let mounts = "plugins/kubernetes.io/flexvolume/flexvol.test/block/mounts";
        let dir = sandbox.kubelet_root().join(mounts).join(name);
        fs::create_dir_all(&dir).unwrap();
        dir
    });
    let call = |arguments: &[&str]| driver.call(arguments).success();
    let [first, second] = globals.each_ref().map(|dir| dir.to_str().unwrap());
    for dir in [first, second, first, second] {
        call(&["mountdevice", dir, "", &json]);
        assert_eq!(below(&globals[0]).len(), 1);
        assert_eq!(below(&globals[1]), []);
    }
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    let content = fill(pod.dir());
    let grown = call(&["expandfs", &json, "", second, "419430400", "314572800"]);
    assert_eq!(measured(&grown), 400 * MIB);
    call(&["unmountdevice", second]);
    assert_eq!(below(&globals[0]).len(), 1);
    pod.unmount().success();
    call(&["unmountdevice", first]);
    // The name that is left alone has the volume for itself.
    call(&["mountdevice", second, "", &json]);
    assert_eq!(fs::read(globals[1].join("before")).unwrap(), content);
    call(&["unmountdevice", second]);
    for dir in &globals {
        fs::remove_dir(dir).unwrap();
    }
    call(&["delete", &json]);
    baseline.expect(&sandbox, "both names were detached");
}
