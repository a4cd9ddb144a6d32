//! Checks of mounting with `mount`, or with `mountdevice` if kubelet makes the bind mounts.

use crate::{
    bench::{Bench, MountPoint, files},
    callout::{
        argument::{self, FS_GROUP, FS_GROUP_BEFORE, Options},
        call::Call,
    },
    check::{Check, Level, Need},
    system::{self, cleanup, mount_namespace, mounts},
    verdict::{Stop, Verdict, not_applicable, wrong},
    volume::Release,
};
use anyhow::Context;
use std::{fs, io::ErrorKind, os::unix::fs::MetadataExt, path::Path};

pub const CHECKS: &[Check] = &[
    Check {
        name: "mnt.happy-rw-data",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "a volume is mounted, and what is written to it is read back",
        why: "Success without a mount lets the pod write to the node's own disk",
        broke: "a driver that took mount's exit code 32 for a success, one that dropped the error of a bind mount",
        mend: "read /proc/self/mountinfo before answering Success",
        source: "SetUpAt in pkg/volume/flexvolume/mounter.go, 1.6 to 1.37",
        run: happy,
    },
    Check {
        name: "mnt.ro-is-ro",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "with kubernetes.io/readwrite ro nothing can be written",
        why: "kubelet makes only the container's mount read-only; the rest of the node can write",
        broke: "a driver with an inverted test, which mounted readonly=1 writable",
        mend: "mount read-only, and look at the mount's options afterwards",
        source: "kubernetes.io/readwrite of driver-call.go; SetUpAt does nothing about it",
        run: read_only,
    },
    Check {
        name: "mnt.repeat-no-stack",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "mounting again succeeds and mounts nothing on top",
        why: "a restarted kubelet mounts again; of two mounts unmount takes one, and the pod never ends",
        broke: "the example dummy, and a driver for CIFS: a mount more with every call",
        mend: "look whether the right thing is mounted there already; Success if so",
        source: "reconstruct.go of pkg/kubelet/volumemanager, and detection by device, which misses bind mounts",
        run: repeat,
    },
    Check {
        name: "mnt.other-thing-mounted-there",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "something else that is mounted on the directory is not taken for the volume",
        why: "the pod would write somebody else's data",
        broke: "scripts whose only question is mountpoint -q",
        mend: "compare what is mounted with the volume's device; Failure if it is another",
        source: "prepareForMount in pkg/volume/flexvolume/mounter.go looks only for some mount",
        run: other_thing,
    },
    Check {
        name: "mnt.failure-not-success",
        level: Level::Must,
        needs: &[Need::Root],
        alone: false,
        what: "a volume that does not exist is a Failure, and nothing stays mounted",
        why: "after a Failure no unmount follows: a mount that stays is there for ever",
        broke: "drivers that drop the error of mount(8), or make a directory and mount that",
        mend: "undo every step before answering Failure; answer Success for a mount that is there, only",
        source: "IsOperationFinishedError; SetUpAt removes the directory only if it is empty (mounter.go)",
        run: missing_volume,
    },
    Check {
        name: "mnt.fsgroup-both-keys",
        level: Level::Should,
        // It changes the group of all files in the volume.
        needs: &[Need::Root, Need::Fresh],
        alone: false,
        what: "a driver that says fsGroup: false gives the volume to the group, under the old and the new key",
        why: "the key was renamed by accident in 1.15; who knows one of them leaves pods without their files",
        broke: "most: the documentation still has the old key",
        mend: "read kubernetes.io/mounterArgs.FsGroup and kubernetes.io/fsGroup",
        source: "mounter.go: kubernetes.io/fsGroup in 1.6 to 1.14, mounterArgs.FsGroup since 1.15",
        run: groups,
    },
    Check {
        name: "mnt.target-nonempty",
        level: Level::Should,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "files in the directory survive a mount over them and its end",
        why: "what an earlier failure left there is for a person to look at; deleting it has deleted volumes",
        broke: "drivers that run rm -rf on the directory when they mount or unmount",
        mend: "mount over it or refuse; never delete what is below a mount",
        source: "os.Remove in mounter.go and unmounter.go, never RemoveAll",
        run: nonempty,
    },
    Check {
        name: "mnt.unknown-key-ignored",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "a key of kubernetes.io that the driver does not know changes nothing",
        why: "every few releases add one; a driver that refuses it stops working with the upgrade",
        broke: "drivers with a closed list of options, in which they look for all keys",
        mend: "split off kubernetes.io/ and k8s.io/ keys before looking for unknown options",
        source: "NewOptionsForDriver in driver-call.go: keys were added in 1.6.5, 1.7 and 1.15",
        run: unknown_key,
    },
];

fn happy(bench: &Bench) -> Verdict {
    let volume = bench.volume()?;
    let mount_point = bench.attach_and_mount(&volume, "sanity-pod", "rw")?;
    files::write(bench, &mount_point, "sanity", files::TEXT)?;
    files::expect(bench, &mount_point, "sanity", files::TEXT)?;
    bench.unmount_and_detach(&mount_point)
}

fn read_only(bench: &Bench) -> Verdict {
    bench.needs_mounting()?;
    let volume = bench.volume()?;
    if !bench.run.config.volume.read_only {
        // Some drivers format only when the volume is mounted writable.
        let mount_point = bench.attach_and_mount(&volume, "sanity-pod", "rw")?;
        bench.unmount_and_detach(&mount_point)?;
    }
    let mount_point = bench.prepare_final_mount(&volume, "sanity-reader", "ro")?;
    let call = bench.mount(&mount_point, "ro")?;
    bench.expect_mounted(&mount_point, &call)?;
    match files::try_write(bench, &mount_point, "sanity", files::TEXT) {
        Ok(()) => Err(wrong(&call, "writing fails", "a file was written")),
        Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => {
            bench.unmount_and_detach(&mount_point)
        }
        Err(error) => Err(wrong(&call, "writing fails with EROFS", error.to_string())),
    }
}

fn repeat(bench: &Bench) -> Verdict {
    bench.needs_mounting()?;
    let volume = bench.volume()?;
    let mount_point = bench.attach_and_mount(&volume, "sanity-pod", "rw")?;
    if let Some(node) = bench.node_mount_point(&mount_point) {
        repeat_mount(bench, &node)?;
    }
    repeat_mount(bench, &mount_point)?;
    bench.unmount_and_detach(&mount_point)
}

/// Mounts again where the volume is mounted already.
fn repeat_mount(bench: &Bench, mount_point: &MountPoint) -> Verdict {
    let before = mounts::at(&mount_point.dir)?.len();
    for _ in 0..3 {
        let call = bench.mount(mount_point, "rw")?;
        bench.expect_mounted(mount_point, &call)?;
        let now = mounts::at(&mount_point.dir)?.len();
        if now != before {
            return Err(wrong(
                &call,
                format!("{before} mount on the directory"),
                format!("{now}"),
            ));
        }
    }
    Ok(())
}

fn other_thing(bench: &Bench) -> Verdict {
    bench.needs_mounting()?;
    let volume = bench.volume()?;
    let mount_point = bench.prepare_final_mount(&volume, "sanity-pod", "rw")?;
    let other = bench.dir.join("other");
    fs::create_dir(&other).context("make a directory")?;
    let call = onto_other(bench, &mount_point, &other)?;
    // If the driver mounted over it, the volume is in use, and the node's directory cannot be tested.
    let node = bench
        .node_mount_point(&mount_point)
        .filter(|_| call.failed());
    let Some(node) = node else { return Ok(()) };
    bench.unmount_and_remove(&node)?;
    onto_other(bench, &node, &other).map(drop)
}

/// Mounts a volume on a directory on which something else is mounted.
fn onto_other(bench: &Bench, mount_point: &MountPoint, other: &Path) -> Result<Call, Stop> {
    system::make_directory(&mount_point.dir).context("make kubelet's directory")?;
    mount_namespace::bind(other, &mount_point.dir)?;
    let call = bench.mount(mount_point, "rw")?;
    if call.failed() {
        cleanup::unmount(&mount_point.dir)?;
        return Ok(call);
    }
    if !call.succeeded() {
        return Err(wrong(&call, "a Failure", "no reply"));
    }
    let own = fs::metadata(other).context("look at the directory")?;
    let now = fs::metadata(&mount_point.dir).context("look at the mount")?;
    if (own.dev(), own.ino()) == (now.dev(), now.ino()) {
        return Err(wrong(
            &call,
            "a Failure",
            "Success, and the other thing is what the pod sees",
        ));
    }
    Ok(call)
}

fn missing_volume(bench: &Bench) -> Verdict {
    bench.needs_mounting()?;
    for callout in ["mount", "mountdevice"] {
        if !bench.run.supports(callout) {
            continue;
        }
        let dir = bench.dir.join(callout);
        system::make_directory(&dir).context("make a directory")?;
        let call = bench.call(&bench.run.missing_volume_arguments(callout, &dir))?;
        if call.succeeded() {
            let mounted = !mounts::at(&dir)?.is_empty();
            let found = if mounted {
                "Success, something is mounted"
            } else {
                "Success, nothing is mounted"
            };
            return Err(wrong(&call, "a Failure", found));
        }
        if !mounts::below(&dir)?.is_empty() {
            return Err(wrong(
                &call,
                "nothing is mounted after a Failure",
                "something is",
            ));
        }
    }
    Ok(())
}

/// Calls `mount` with additional members.
pub fn mount_with(
    bench: &Bench,
    mount_point: &MountPoint,
    more: &[(&str, &str)],
) -> Result<Call, Stop> {
    let mut argv = bench.mount_arguments(mount_point, "rw")?;
    let last = argv.len() - 1;
    let mut members: Options = serde_json::from_str(&argv[last]).context("read our own JSON")?;
    members.extend(more.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
    argv[last] = argument::object(&members);
    bench.call(&argv)
}

fn groups(bench: &Bench) -> Verdict {
    if bench.run.capabilities.fs_group {
        return Err(not_applicable(
            "init says fsGroup: true: kubelet gives the files to the group",
        ));
    }
    let volume = bench.volume()?;
    for (key, release, group) in [
        (FS_GROUP_BEFORE, Release::V1_13, 4711),
        (FS_GROUP, Release::V1_25, 4712),
    ] {
        let mount_point =
            bench.prepare_final_mount(&volume.seen_by(release), "sanity-pod", "rw")?;
        let call = mount_with(bench, &mount_point, &[(key, &group.to_string())])?;
        bench.expect_mounted(&mount_point, &call)?;
        let found = fs::metadata(&mount_point.dir).context("look at the volume")?;
        if found.gid() != group || found.mode() & 0o070 != 0o070 {
            let found = format!("group {}, mode {:o}", found.gid(), found.mode() & 0o7777);
            return Err(wrong(&call, format!("group {group} may write"), found));
        }
        bench.unmount_and_detach(&mount_point)?;
    }
    Ok(())
}

fn nonempty(bench: &Bench) -> Verdict {
    bench.needs_mounting()?;
    let volume = bench.volume()?;
    let mount_point = bench.prepare_final_mount(&volume, "sanity-pod", "rw")?;
    system::make_directory(&mount_point.dir).context("make kubelet's directory")?;
    let file = mount_point.dir.join("left-by-somebody");
    fs::write(&file, files::TEXT).context("write into the directory")?;
    let call = bench.mount(&mount_point, "rw")?;
    if call.succeeded() {
        bench.expect_mounted(&mount_point, &call)?;
        let call = bench.unmount(&mount_point)?;
        bench.expect_unmounted(&mount_point, &call)?;
    } else if !call.failed() {
        return Err(wrong(&call, "Success or a Failure", "no reply"));
    }
    match fs::read(&file) {
        Ok(read) if read == files::TEXT => Ok(()),
        _ => Err(wrong(
            &call,
            "the file in the directory is there afterwards",
            "it is gone",
        )),
    }
}

fn unknown_key(bench: &Bench) -> Verdict {
    bench.needs_mounting()?;
    let volume = bench.volume()?;
    let mount_point = bench.prepare_final_mount(&volume, "sanity-pod", "rw")?;
    let call = mount_with(
        bench,
        &mount_point,
        &[
            ("kubernetes.io/sanity-new", "x"),
            ("storage.k8s.io/sanity", "y"),
        ],
    )?;
    bench.expect_mounted(&mount_point, &call)?;
    bench.unmount_and_detach(&mount_point)
}
