//! The life of a volume as kubelet leads it.

use super::{
    GROUP, GROWERS, GROWN, MIB, NEEDS, Node, SIZE, fill, flexvol, inventory, lvm, mappings, run,
    size_of_filesystem, told,
};
use flexvol_testing::{Baseline, Hidden, Outcome, PersistentVolume, Points, request, tests};
use std::{fs, path::Path, thread};

tests! {
    "lvm: linear volumes are mounted, filled, grown while mounted and deleted", NEEDS
        => |points| life(&Node::linear(), points);
    "lvm: thin volumes are mounted, filled, grown while mounted and deleted", NEEDS
        => |points| life(&Node::thin(1200 * MIB), points);
    "lvm: an attached volume is shared by pods and leaves nothing", NEEDS => attached;
    "lvm: parallel provisions of one name make one volume, also after a reboot", NEEDS => names;
    "lvm: a volume that is mounted or open is not deleted", NEEDS => in_use;
    "lvm: an unused volume is deactivated where that is wanted", NEEDS => deactivated;
    "lvm: mounting an active volume runs lvm once", NEEDS => cheap;
    "lvm: volumes are unmounted while their group is missing, and nothing else is done", NEEDS
        => missing;
}

/// Nothing that could grow a file system by itself is there while it grows.
fn life(node: &Node, points: &Points) {
    for filesystem in ["xfs", "ext4", "btrfs"] {
        let (before, devices) = (inventory(), mappings().len());
        let volume = node.provision(filesystem, filesystem);
        let pod = node.pod(&volume);
        pod.mount("rw").success();
        let content = fill(pod.dir(), "file");
        let size = size_of_filesystem(pod.dir());

        let hidden = Hidden::tools(GROWERS);
        let call = node.expand(&volume, GROWN).success();
        assert_eq!(
            call.object().unwrap()["volumenewsize"],
            GROWN,
            "{filesystem}"
        );
        drop(hidden);
        assert!(
            size_of_filesystem(pod.dir()) >= size + 128 * MIB,
            "{filesystem}"
        );
        assert_eq!(told(&volume, "lv_size"), GROWN.to_string());
        assert_eq!(fs::read(pod.dir().join("file")).unwrap(), content);
        points.add(1);

        // The same again, and less, change nothing.
        for to in [GROWN, SIZE] {
            let call = node.expand(&volume, to).success();
            assert_eq!(
                call.object().unwrap()["volumenewsize"],
                GROWN,
                "{filesystem}"
            );
        }
        let more = fill(pod.dir(), "more");
        pod.unmount().success();
        pod.unmount().success();
        pod.mount("ro").success();
        assert_eq!(fs::read(pod.dir().join("file")).unwrap(), content);
        assert_eq!(fs::read(pod.dir().join("more")).unwrap(), more);
        pod.unmount().success();

        let device = format!("/dev/{GROUP}/flexvol-{}", volume.id());
        let check: &[&str] = match filesystem {
            "xfs" => &["xfs_repair", "-n", &device],
            "ext4" => &["e2fsck", "-fn", &device],
            _ => &["btrfs", "check", &device],
        };
        run(check[0], &check[1..]);
        node.delete(&volume).success();
        node.delete(&volume).success();
        assert_eq!(
            (inventory(), mappings().len()),
            (before, devices),
            "{filesystem}"
        );
        points.add(1);
    }
}

fn attached(_: &Points) {
    let node = Node::attached();
    let before = inventory();
    let volume = node.provision("pv", "ext4");
    let json = volume.json("rw");
    let driver = &node.driver;
    let device = driver
        .call(&["attach", &json, "node"])
        .success()
        .text("device");
    let waited = driver.call(&["waitforattach", &device, &json]).success();
    assert_eq!(waited.text("device"), device);
    let plugins = node
        .sandbox
        .kubelet_root()
        .join("plugins/kubernetes.io/flexvolume");
    let shared = plugins.join("example.com/lvm/mounts/pv");
    fs::create_dir_all(&shared).unwrap();
    let shared = shared.to_str().unwrap();
    driver
        .call(&["mountdevice", shared, &device, &json])
        .success();
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let content = fill(pod.dir(), "file");
    let grown = [GROWN, SIZE].map(|size| size.to_string());
    driver
        .call(&["expandfs", &json, &device, shared, &grown[0], &grown[1]])
        .success();
    assert_eq!(fs::read(Path::new(shared).join("file")).unwrap(), content);
    assert!(size_of_filesystem(pod.dir()) > SIZE);
    pod.unmount().success();
    driver.call(&["unmountdevice", shared]).success();
    driver.call(&["detach", "pv", "node"]).success();
    node.delete(&volume).success();
    assert_eq!(inventory(), before);
}

fn names(points: &Points) {
    let node = Node::linear();
    let provision = || node.driver.call(&["provision", &request("pv", SIZE)]);
    let calls: Vec<_> = thread::scope(|scope| {
        let calls: Vec<_> = (0..4).map(|_| scope.spawn(provision)).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    let handle = |call| {
        PersistentVolume::from_reply("pv", "xfs", &call)
            .handle()
            .to_owned()
    };
    let mut handles: Vec<_> = calls
        .into_iter()
        .map(|call| handle(call.success()))
        .collect();
    // A reboot takes the promised names away, and not those of volumes.
    fs::remove_dir_all("/run/flexvol/names").unwrap();
    handles.push(handle(provision().success()));
    handles.dedup();
    assert_eq!(handles.len(), 1, "{handles:?}");
    points.add(5);
    let volumes = lvm(&["lvs", "--noheadings", "-o", "lv_name", GROUP]);
    assert_eq!(volumes.lines().count(), 1, "{volumes}");

    let larger = node
        .driver
        .call(&["provision", &request("pv", GROWN)])
        .failure();
    assert!(larger.contains("exists with"), "{larger}");
    // More than there is leaves nothing, and says both numbers.
    let none = node
        .driver
        .call(&["provision", &request("more", 64 << 30)])
        .failure();
    assert!(none.contains("the volume needs 64Gi more"), "{none}");
    assert!(!inventory().iter().any(|line| line.contains("more")));
    let volume = PersistentVolume::from_reply("pv", "xfs", &provision().success());
    node.delete(&volume).success();
    assert_ne!(handle(provision().success()), handles[0]);
}

fn in_use(points: &Points) {
    let node = Node::linear();
    let volume = node.provision("pv", "ext4");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let content = fill(pod.dir(), "file");
    let refused = node.delete(&volume).failure();
    assert!(refused.contains("still mounted"), "{refused}");
    pod.unmount().success();
    // Open, and not exclusively: only LVM sees that.
    let device = fs::File::open(format!("/dev/{GROUP}/flexvol-{}", volume.id())).unwrap();
    let refused = node.delete(&volume).failure();
    assert!(refused.contains("has it open"), "{refused}");
    drop(device);
    points.add(2);
    // It is a volume still.
    pod.mount("rw").success();
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), content);
    pod.unmount().success();
    node.delete(&volume).success();
    assert_eq!(lvm(&["lvs", "--noheadings", GROUP]), "");
}

fn deactivated(_: &Points) {
    let node = Node::with("deactivate = true\n");
    // A pool in the same group whose volumes stay active has none of these, nor the other way round.
    super::thin_pool("400M");
    super::flexvol(&["pool", "init", "--group", GROUP, "--thin-pool", "tp0"]);
    let linear = super::install(
        &node.sandbox,
        false,
        &format!("[pools.thin]\ngroup = \"{GROUP}\"\nthin_pool = \"tp0\"\ndeactivate = true\n"),
    );
    let stays = linear
        .call(&["provision", &request("stays", SIZE)])
        .success();
    let stays = flexvol_testing::PersistentVolume::from_reply("stays", "xfs", &stays);
    let pod = flexvol_testing::Pod::new(&node.sandbox, &linear, &stays, "stays");
    pod.mount("rw").success();
    let active = mappings().len();
    pod.unmount().success();
    assert_eq!(mappings().len(), active, "deactivated for another pool");
    linear.call(&["delete", &stays.json("rw")]).success();
    lvm(&["lvremove", "-qq", "-y", &format!("{GROUP}/tp0")]);
    let node = Node {
        driver: super::install(&node.sandbox, false, "deactivate = true\n"),
        sandbox: node.sandbox,
    };
    let volume = node.provision("pv", "xfs");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let other = flexvol_testing::Pod::new(&node.sandbox, &node.driver, &volume, "other");
    other.mount("rw").success();
    pod.unmount().success();
    assert_eq!(mappings().len(), 1, "another pod has it");
    other.unmount().success();
    assert_eq!(mappings().len(), 0);
    pod.mount("rw").success();
    pod.unmount().success();
    assert_eq!(mappings().len(), 0);
    node.delete(&volume).success();
}

fn cheap(_: &Points) {
    let node = Node::linear();
    let volume = node.provision("pv", "xfs");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    pod.unmount().success();
    let log = node.sandbox.path("execve.log");
    let log = log.to_str().unwrap();
    let strace = [
        "/usr/bin/strace",
        "-f",
        "-qq",
        "-e",
        "trace=execve",
        "-o",
        log,
    ];
    let runs = |arguments: &[String]| {
        node.driver.call_through(&strace, arguments).success();
        let trace = fs::read_to_string(log).unwrap();
        trace
            .lines()
            .filter(|line| line.contains("sbin/lvm\""))
            .count()
    };
    assert_eq!(runs(&pod.mount_arguments("rw")), 1, "mount");
    assert_eq!(runs(&pod.mount_arguments("rw")), 1, "mount again");
    let directory = pod.dir().to_str().unwrap().to_owned();
    let unmount = vec!["unmount".to_owned(), directory];
    assert_eq!(runs(&unmount), 0, "unmount");
}

/// The disks answer with errors, as they do when they are gone.
fn missing(points: &Points) {
    let sandbox_disks = flexvol_testing::disks();
    let disk = sandbox_disks[2].to_str().unwrap();
    let (sectors, table) = super::linear_over(disk);
    run("dmsetup", &["create", "pv", "--table", &table]);
    lvm(&["vgcreate", "-qq", "-y", GROUP, "/dev/mapper/pv"]);
    let node = Node::on("", &[], false);
    let volume = node.provision("pv", "ext4");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    fill(pod.dir(), "file");
    let before = Baseline::of(&node.sandbox);

    let load = |table: &str| {
        run("dmsetup", &["suspend", "--noflush", "pv"]);
        run("dmsetup", &["load", "pv", "--table", table]);
        run("dmsetup", &["resume", "pv"]);
    };
    load(&format!("0 {sectors} error"));
    let refused = node.expand(&volume, GROWN).failure();
    assert!(refused.contains("volume group"), "{refused}");
    node.delete(&volume).failure();
    let other = flexvol_testing::Pod::new(&node.sandbox, &node.driver, &volume, "other");
    let refused = other.mount("rw").failure();
    assert!(refused.contains("volume group"), "{refused}");
    points.add(3);
    let unmounted = node.driver.call(&["unmount", pod.dir().to_str().unwrap()]);
    assert!(!pod.dir().join("file").exists(), "{unmounted}");
    assert_eq!(
        node.driver
            .call(&["unmount", pod.dir().to_str().unwrap()])
            .outcome(),
        Outcome::Success
    );

    load(&table);
    fs::remove_dir(pod.dir()).unwrap();
    pod.mount("rw").success();
    assert!(pod.dir().join("file").exists());
    before.expect(&node.sandbox, "the disks are back");
    pod.unmount().success();
    let doctor = flexvol(&["list", "--config", &node.configuration()]);
    assert!(doctor.contains("pv"), "{doctor}");
    node.delete(&volume).success();
}
