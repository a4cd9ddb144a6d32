//! Nodes that lack a resource, or whose kernel forbids something.

use crate::{node::MIB, sandbox};
use flexvol_testing::{Baseline, Need, PersistentVolume, Pod, Points, request, tests};
use std::path::Path;

tests! {
    "unmounting needs no room in /run", &[Need::Root, Need::Tool("unshare", "util-linux"), Need::Tool("mkfs.xfs", "xfsprogs")]
        => no_room;
    "a limit on the size of files is answered, and leaves nothing", &[Need::Root, Need::Tool("mkfs.xfs", "xfsprogs")]
        => limited_files;
    "a kernel that wants memory files without execution stops no program", &[Need::Root, Need::Tool("unshare", "util-linux"), Need::Tool("mkfs.ext4", "e2fsprogs")]
        => memory_files;
    "root of a user namespace is told what he lacks", &[Need::Root, Need::Tool("unshare", "util-linux"), Need::Tool("mkfs.xfs", "xfsprogs")]
        => user_namespace;
}

fn no_room(points: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("flexvol.test/full", false, "reserve = \"0%\"");
    let volume = PersistentVolume::provision(&driver, "data", "xfs", 300 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    let dir = pod.dir().to_str().unwrap();
    let lock = format!("/run/flexvol/lock/{}", volume.id());
    assert!(Path::new(&lock).exists());
    for changed in [
        // The lock's file exists.
        "mount --bind /run/flexvol/lock /run/flexvol/lock && mount -o remount,bind,ro /run/flexvol/lock",
        // The lock's file was lost, and there is no inode for another.
        "mount -t tmpfs -o nr_inodes=1 none /run/flexvol/lock",
        "mount -t tmpfs -o nr_inodes=1 none /run/flexvol",
        // The sandbox is in /run, too.
        "mount -t tmpfs none /mnt && mkdir /mnt/flexvol-tests && \
         mount --rbind /run/flexvol-tests /mnt/flexvol-tests && \
         mount -o remount,ro /mnt && mount --rbind /mnt /run",
    ] {
        let script = format!(
            "{changed} && \"$@\"; code=$?; [ $(stat -c %d {dir}) = $(stat -c %d {dir}/..) ] || echo still mounted; exit $code"
        );
        let through = ["/usr/bin/unshare", "-m", "/bin/sh", "-c", &script, "sh"];
        driver.call_through(&through, &["unmount", dir]).success();
        points.add(1);
    }
    // Other callouts wait until there is an inode.
    let full = "mount -t tmpfs -o nr_inodes=1 none /run/flexvol/lock";
    let refused = driver.call_where(full, &pod.expand_arguments(400 * MIB, 300 * MIB));
    let message = refused.failure();
    assert!(message.contains("open the lock"), "{message}");
    pod.unmount().success();
    driver.call(&["delete", &volume.json("rw")]).success();
}

fn limited_files(points: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("flexvol.test/limited", false, "reserve = \"0%\"");
    let limited = |mebibytes: u64, arguments: &[String]| {
        let script = format!("ulimit -f {} && exec \"$@\"", mebibytes * 2048);
        let call = driver.call_through(&["/bin/sh", "-c", &script, "sh"], arguments);
        let message = call.failure();
        assert!(
            message.contains("RLIMIT_FSIZE") && message.contains(&format!("{mebibytes}Mi")),
            "{message}"
        );
        points.add(1);
    };
    let before = Baseline::of(&sandbox);
    limited(50, &["provision".to_owned(), request("data", 300 * MIB)]);
    before.expect(&sandbox, "a volume was refused");
    let volume = PersistentVolume::provision(&driver, "data", "xfs", 300 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    pod.mount("rw").success();
    let before = Baseline::of(&sandbox);
    let grow = pod.expand_arguments(400 * MIB, 300 * MIB);
    limited(350, &grow);
    before.expect(&sandbox, "a growth was refused");
    driver.call(&grow).success();
    pod.unmount().success();
    driver.call(&["delete", &volume.json("rw")]).success();
}

/// `vm.memfd_noexec` is a setting of a process namespace.
fn memory_files(_: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("flexvol.test/noexec", false, "reserve = \"0%\"");
    let script = "echo 2 > /proc/sys/vm/memfd_noexec && exec \"$@\"";
    let through = [
        "/usr/bin/unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "/bin/sh",
        "-c",
        script,
        "sh",
    ];
    let volume = PersistentVolume::provision(&driver, "data", "ext4", 64 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    // The mount itself is in a mount namespace of the call. What it formatted stays.
    driver
        .call_through(&through, &pod.mount_arguments("rw"))
        .success();
    pod.mount("rw").success();
    pod.unmount().success();
    driver
        .call_through(&through, &["delete", &volume.json("rw")])
        .success();
}

fn user_namespace(_: &Points) {
    let sandbox = sandbox();
    let driver = sandbox.install("flexvol.test/inside", false, "reserve = \"0%\"");
    let volume = PersistentVolume::provision(&driver, "data", "xfs", 300 * MIB);
    let pod = Pod::new(&sandbox, &driver, &volume, "one");
    let through = ["/usr/bin/unshare", "--user", "--map-root-user", "--mount"];
    let refused = driver.call_through(&through, &pod.mount_arguments("rw"));
    let message = refused.failure();
    assert!(message.contains("user namespace"), "{message}");
    assert!(!message.contains("adopt"), "{message}");
    pod.mount("rw").success();
    pod.unmount().success();
}
