//! Drivers that grow a volume only while no pod uses it.

use crate::{
    lifecycle::{ALL, MIB, measured, size_of_filesystem},
    sandbox,
};
use flexvol_testing::{Driver, PersistentVolume, Pod, Points, Sandbox, tests};

tests! {
    "offline growth waits until no pod uses the volume", ALL => offline;
    "by offline policy no mount grows a file system that another pod has", ALL
        => grows_under_nobody;
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
