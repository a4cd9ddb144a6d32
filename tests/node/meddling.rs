//! Volumes that others on the node touch: an administrator, a backup, another call.

use crate::{node::MIB, sandbox};
use flexvol_testing::{
    Baseline, Call, Driver, Need, Outcome, PersistentVolume, Pod, Points, PoolFilesystem, Sandbox,
    below, json, request, tests,
};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    thread,
};

const NEEDS: &[Need] = &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")];

tests! {
    "an image that lost its end is neither mounted nor made to look whole", NEEDS => cut_image;
    "a device that an administrator made is made fit or refused", NEEDS => foreign_device;
    "deleting tells that somebody keeps the device open", NEEDS => held_device;
    "a volume whose disk fails is unmounted", NEEDS => failed_disk;
    "a copy in another pool does not hide the volume", NEEDS => copied_image;
    "a name and its volume come and go together", NEEDS => names_and_volumes;
    "a provision for somebody else, or in vain, leaves things as they were", NEEDS
        => refused_provisions;
}

fn install(sandbox: &Sandbox) -> Driver {
    sandbox.install("flexvol.test/meddled", false, "reserve = \"64Mi\"")
}

fn cut(image: &Path, size: u64) {
    let image = File::options().write(true).open(image).unwrap();
    image.set_len(size).unwrap();
}

fn expand(driver: &Driver, callout: &str, volume: &PersistentVolume, pod: &Pod<'_>) -> Call {
    let mut argv = vec![callout.to_owned(), volume.json("rw")];
    if callout == "expandfs" {
        argv.push(String::new());
    }
    argv.push(pod.dir().display().to_string());
    argv.extend([400 * MIB, 300 * MIB].map(|size| size.to_string()));
    driver.call(&argv)
}

fn cut_image(_: &Points) {
    for attached in [true, false] {
        let sandbox = sandbox();
        let driver = install(&sandbox);
        let volume = PersistentVolume::provision(&driver, "data", "xfs", 300 * MIB);
        let pods = ["one", "two"].map(|uid| Pod::new(&sandbox, &driver, &volume, uid));
        pods[0].mount("rw").success();
        if !attached {
            pods[0].unmount().success();
        }
        let image = volume.image(&sandbox);
        // Not a multiple of a sector.
        let end = 200 * MIB + 100;
        cut(&image, end);
        for call in [
            pods[1].mount("rw"),
            expand(&driver, "expandfs", &volume, &pods[1]),
            expand(&driver, "expandvolume", &volume, &pods[1]),
        ] {
            let message = call.failure();
            assert!(
                message.contains("300Mi") && message.contains("200Mi"),
                "attached {attached}: {message}"
            );
        }
        assert_eq!(fs::metadata(&image).unwrap().len(), end);
        cut(&image, 300 * MIB);
        pods[0].unmount().success();
        assert_eq!(sandbox.loops(), []);
    }
}

/// A loop device as an administrator makes it. Detached on drop.
struct Attached(PathBuf);

impl Attached {
    fn new(image: &Path, options: &[&str]) -> Self {
        let output = Command::new("losetup")
            .args(options)
            .args(["--show", "-f"])
            .arg(image)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let device = String::from_utf8(output.stdout).unwrap();
        Attached(device.trim().into())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // Some tests have detached it before.
        let _ = Command::new("losetup").arg("-d").arg(&self.0).output();
    }
}

fn foreign_device(_: &Points) {
    let sandbox = sandbox();
    let driver = install(&sandbox);
    let volume = PersistentVolume::provision(&driver, "data", "xfs", 300 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    pod.unmount().success();
    let image = volume.image(&sandbox);
    for (options, found) in [
        (&["-r"][..], "read-only"),
        (&["-o", "4096"], "in part only"),
        (&["--sizelimit", "4096"], "in part only"),
        (&["-b", "4096"], "4096-byte sectors"),
    ] {
        let _device = Attached::new(&image, options);
        let message = pod.mount("rw").failure();
        assert!(message.contains(found), "{options:?}: {message}");
    }
    let _device = Attached::new(&image, &[]);
    pod.mount("rw").success();
    pod.unmount().success();
    assert_eq!(sandbox.loops(), [], "it goes with its last user");
}

fn held_device(_: &Points) {
    let sandbox = sandbox();
    let driver = install(&sandbox);
    let baseline = Baseline::of(&sandbox);
    let volume = PersistentVolume::provision(&driver, "data", "xfs", 300 * MIB);
    let device = Attached::new(&volume.image(&sandbox), &[]);
    let held = File::open(&device.0).unwrap();
    let message = driver.call(&["delete", &volume.json("rw")]).failure();
    assert!(
        message.contains("keeps the volume's device open"),
        "{message}"
    );
    drop(held);
    driver.call(&["delete", &volume.json("rw")]).success();
    baseline.expect(&sandbox, "the volume was deleted");
}

fn failed_disk(_: &Points) {
    let xfs = PoolFilesystem {
        kind: "xfs",
        ..PoolFilesystem::default()
    };
    let sandbox = Sandbox::with_pool_on(&crate::executable(), xfs);
    let driver = install(&sandbox);
    let volume = PersistentVolume::provision(&driver, "data", "xfs", 300 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    crate::bench::run(
        "xfs_io",
        ["-x", "-c", "shutdown"].map(AsRef::as_ref),
        &sandbox.disk(),
    );
    // The first call may report lost writes, the second may not.
    let first = pod.unmount();
    if first.outcome() != Outcome::Success {
        assert!(
            first.failure().contains("not all of its data"),
            "{}",
            first.failure()
        );
    }
    assert_eq!(below(pod.dir()), []);
    pod.unmount().success();
}

fn copied_image(_: &Points) {
    let sandbox = sandbox();
    let other = sandbox.disk().join("other");
    sandbox.make_pool(&other);
    // The wrong pool is searched first.
    let configuration = format!(
        "backend = \"loop\"\n\
         [pools.aside]\npath = {other:?}\nreserve = \"64Mi\"\n\
         [pools.default]\npath = {:?}\nreserve = \"64Mi\"\n",
        sandbox.pool()
    );
    let driver = sandbox.install_with("flexvol.test/copied", &configuration);
    let volume = PersistentVolume::provision(&driver, "data", "xfs", 300 * MIB);
    let copied = Command::new("cp")
        .args(["-a", "--sparse=always"])
        .arg(volume.image(&sandbox))
        .arg(other.join("volumes"))
        .output()
        .unwrap();
    assert!(copied.status.success(), "{copied:?}");
    let unknown = driver
        .call(&["capacity", r#"{"pool":"elsewhere"}"#])
        .failure();
    assert!(
        unknown.contains("elsewhere") && !unknown.contains("aside"),
        "pods are told of no other pool: {unknown}"
    );
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    let dir = pod.dir().display().to_string();
    let handle = json([("handle", volume.handle())]);
    let (new, old) = ((400 * MIB).to_string(), (300 * MIB).to_string());
    for known in ["{}", &handle] {
        driver
            .call(&["expandfs", known, "", &dir, &new, &old])
            .success();
    }
    pod.unmount().success();
    let copy = json([("handle", volume.handle()), ("pool", "aside")]);
    let message = driver.call(&["delete", &copy]).failure();
    assert!(message.contains("a copy"), "{message}");
    driver.call(&["delete", &handle]).success();
    // Now only the copy is left.
    let message = driver.call(&["delete", &handle]).failure();
    assert!(message.contains("a copy"), "{message}");
}

fn entries(dir: PathBuf) -> usize {
    fs::read_dir(dir).unwrap().count()
}

fn names_and_volumes(_: &Points) {
    let sandbox = sandbox();
    let driver = install(&sandbox);
    let provision = ["provision".to_owned(), request("data", 300 * MIB)];
    for _ in 0..20 {
        let first = driver.call(&provision).success();
        let volume = PersistentVolume::from_reply("data", "xfs", &first);
        thread::scope(|scope| {
            scope.spawn(|| driver.call(&["delete", &volume.json("rw")]));
            for _ in 0..3 {
                scope.spawn(|| driver.call(&provision));
            }
        });
        let counts = ["names", "volumes"].map(|part| entries(sandbox.pool().join(part)));
        assert_eq!(counts[0], counts[1], "names and volumes");
        let last = driver.call(&provision).success();
        let volume = PersistentVolume::from_reply("data", "xfs", &last);
        driver.call(&["delete", &volume.json("rw")]).success();
        let counts = ["names", "volumes"].map(|part| entries(sandbox.pool().join(part)));
        assert_eq!(counts, [0, 0], "names and volumes after the last delete");
    }
}

fn refused_provisions(_: &Points) {
    let sandbox = sandbox();
    let driver = install(&sandbox);
    let volume = PersistentVolume::provision(&driver, "data", "xfs", 300 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    pod.unmount().success();
    let size = (300 * MIB).to_string();
    let ask = |namespace: &str, filesystem: &str| {
        let request = json([
            ("kubernetes.io/pvOrVolumeName", "data"),
            ("kubernetes.io/pvc.namespace", namespace),
            ("kubernetes.io/fsType", filesystem),
            ("requestBytes", &size),
        ]);
        driver.call(&["provision", &request])
    };
    ask("default", "xfs").success();
    let message = ask("stranger", "xfs").failure();
    assert!(message.contains("another namespace"), "{message}");
    let message = ask("default", "ext4").failure();
    assert!(
        message.contains("ext4") && message.contains("xfs"),
        "{message}"
    );

    let baseline = Baseline::of(&sandbox);
    let huge = driver.call(&["provision", &request("huge", 1 << 50)]);
    assert!(huge.failure().contains("has"), "{}", huge.failure());
    assert!(!sandbox.pool().join("names/huge").exists());
    baseline.expect(&sandbox, "there was no room for the volume");
}
