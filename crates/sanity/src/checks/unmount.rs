//! Checks of unmounting.

use crate::{
    bench::{
        Bench, MountPoint,
        files::{self, TEXT},
    },
    check::{Check, Level, Need},
    config::Kind,
    system::{command, mounts},
    verdict::{Stop, Verdict, not_applicable, wrong},
};
use anyhow::Context;
use std::{
    ffi::OsStr,
    fs::{self, File},
};

pub const CHECKS: &[Check] = &[
    Check {
        name: "umt.happy",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "unmounting leaves no mount, and a directory that kubelet can remove",
        why: "kubelet removes the directory with rmdir; what is left in it keeps the pod terminating for ever",
        broke: "drivers that write files into the directory, before or after the mount",
        mend: "keep state elsewhere; unmount until nothing is mounted",
        source: "TearDownAt in pkg/volume/flexvolume/unmounter.go, 1.6 to 1.37",
        run: |bench| {
            bench.needs_unmounting()?;
            let volume = bench.volume()?;
            let mount_point = bench.attach_and_mount(&volume, "sanity-pod", "rw")?;
            bench.unmount_and_detach(&mount_point)
        },
    },
    Check {
        name: "umt.repeat",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "unmounting what was unmounted succeeds",
        why: "kubelet repeats it after a restart or a lost answer; a Failure is repeated for ever",
        broke: "drivers that pass on umount's \"not mounted\"",
        mend: "Success if nothing is mounted there",
        source: "unmounter.go: called also where nothing is mounted, since 1.8",
        run: |bench| {
            bench.needs_unmounting()?;
            let volume = bench.volume()?;
            let mount_point = bench.attach_and_mount(&volume, "sanity-pod", "rw")?;
            for _ in 0..2 {
                let call = bench.unmount(&mount_point)?;
                bench.expect_unmounted(&mount_point, &call)?;
            }
            bench.unmount_and_detach(&mount_point)
        },
    },
    Check {
        name: "umt.never-mounted",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "unmounting a directory where nothing was ever mounted succeeds",
        why: "kubelet unmounts what a failed mount may have left; a Failure keeps the pod terminating for ever",
        broke: "a driver for git, one for LVM that answered twice, drivers that ask a daemon first",
        mend: "look into /proc/self/mountinfo first; Success if nothing is mounted there",
        source: "unmounter.go: called also where nothing is mounted, since 1.8",
        run: |bench| {
            bench.needs_unmounting()?;
            for callout in ["unmount", "unmountdevice"] {
                if bench.run.supports(callout) {
                    let dir = bench.dir.join(callout);
                    fs::create_dir(&dir).context("make a directory")?;
                    succeeds(bench, callout, &dir)?;
                }
            }
            Ok(())
        },
    },
    Check {
        name: "umt.missing-dir",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "unmounting a directory that is not there succeeds",
        why: "it is gone when the last answer was lost; a Failure is repeated for ever",
        broke: "drivers that look at the directory first",
        mend: "Success if it is not there",
        source: "unmounter.go and detacher.go; other callers, such as clean-up after a restart, do not look first",
        run: |bench| {
            bench.needs_unmounting()?;
            for callout in ["unmount", "unmountdevice"] {
                if bench.run.supports(callout) {
                    succeeds(bench, callout, &bench.dir.join("nowhere"))?;
                }
            }
            Ok(())
        },
    },
    Check {
        name: "umt.busy",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "a volume in use is not unmounted: Failure, and everything is as it was",
        why: "a lazy unmount says Success while somebody writes; attached elsewhere the volume is destroyed",
        broke: "drivers with umount -l or MNT_DETACH, and one that then ran rm -rf",
        mend: "unmount without flags, and answer Failure to EBUSY",
        source: "after Success the controller may attach the volume to another node (attach_detach_controller.go)",
        run: busy,
    },
    Check {
        name: "umt.keeps-data",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "files survive unmounting and mounting",
        why: "this is what volumes are for",
        broke: "drivers that format on every mount, or delete the directory on unmount",
        mend: "format only what is proven blank; remove directories with rmdir alone",
        source: "pkg/volume/flexvolume/unmounter.go: os.Remove, never RemoveAll",
        run: keeps_data,
    },
    Check {
        name: "umt.dead-server",
        level: Level::Should,
        needs: &[Need::Root, Need::Fresh],
        alone: false,
        what: "a volume whose storage has died is unmounted, within the deadline",
        why: "a node that lost its storage keeps every pod with it terminating until somebody comes",
        broke: "drivers that list, measure or sync the volume before they unmount it, and take the error for their own",
        mend: "unmount without touching the volume; report what could not be written, and succeed when asked again",
        source: "TearDownAt in pkg/volume/flexvolume/unmounter.go, repeated for ever, 1.6 to 1.37",
        run: dead,
    },
];

/// Kills the volume's server with the vendor's command, or makes the kernel shut the file system down.
fn dead(bench: &Bench) -> Verdict {
    let kind = bench.run.config.volume.kind;
    if kind != Kind::Block && bench.run.config.volume.kill_server.is_empty() {
        let why = format!("the configuration says kind = \"{kind}\", and no kill_server");
        return Err(not_applicable(why));
    }
    bench.needs_unmounting()?;
    let volume = bench.volume()?;
    let mount_point = bench.attach_and_mount(&volume, "sanity-pod", "rw")?;
    let command = &bench.run.config.volume.kill_server;
    if command.is_empty() {
        shut_down(bench, &mount_point)?;
    } else {
        let target = mount_point.dir.to_string_lossy().into_owned();
        let variables = [
            ("SANITY_NAME", volume.name.as_str()),
            ("SANITY_TARGET", &target),
        ];
        command::hook(command, &variables)?;
    }
    let mut call = bench.unmount(&mount_point)?;
    for _ in 0..2 {
        // The first unmount may report that data could not be written.
        if !call.failed() {
            break;
        }
        call = bench.unmount(&mount_point)?;
    }
    bench.expect_unmounted(&mount_point, &call)
}

/// Shuts a file system down as XFS and ext4 do when their device fails (`xfs_do_force_shutdown`,
/// `ext4_force_shutdown`). Never does so if the file system is also mounted outside the tester's directory.
fn shut_down(bench: &Bench, mount_point: &MountPoint) -> Verdict {
    let left = |why: &str| Err(Stop::Skipped(why.to_owned()));
    let mount = mounts::at(&mount_point.dir)?.pop();
    let Some(mount) = mount.filter(|mount| ["xfs", "ext4"].contains(&mount.filesystem.as_str()))
    else {
        return left("a way to end a volume's server: give [volume] kill_server");
    };
    if !mounts::is_alone(&mount, &bench.run.scratch)? {
        return left("a volume whose file system is its own, or [volume] kill_server");
    }
    if !command::has_tool("xfs_io") {
        return left("xfs_io (package xfsprogs), or [volume] kill_server");
    }
    let words = ["-x", "-c", "shutdown"].map(OsStr::new);
    command::tool(
        "xfs_io",
        &[&words[..], &[mount_point.dir.as_os_str()]].concat(),
    )?;
    // On ext4 cached data can still be read after the shutdown, so this writes.
    if files::try_write(bench, mount_point, "dead", TEXT).is_ok() {
        let why = "the file system was shut down, and can be written still";
        return Err(Stop::Error(anyhow::anyhow!(why)));
    }
    Ok(())
}

fn succeeds(bench: &Bench, callout: &str, dir: &std::path::Path) -> Verdict {
    let call = bench.call(&[callout, &dir.to_string_lossy()])?;
    if call.succeeded() {
        Ok(())
    } else {
        Err(wrong(&call, "Success", "something else"))
    }
}

fn busy(bench: &Bench) -> Verdict {
    bench.needs_unmounting()?;
    let volume = bench.volume()?;
    let mount_point = bench.attach_and_mount(&volume, "sanity-pod", "rw")?;
    // On a read-only volume an open directory keeps it in use.
    let held = if bench.run.config.volume.read_only {
        File::open(&mount_point.dir).context("open the volume")?
    } else {
        files::write(bench, &mount_point, "open", TEXT)?;
        files::open(bench, &mount_point, "held").context("make a file in the volume")?
    };
    stays(bench, &mount_point)?;
    if !bench.run.config.volume.read_only {
        files::expect(bench, &mount_point, "open", TEXT)?;
    }
    drop(held);
    let node = bench.node_mount_point(&mount_point);
    let Some(node) = node.filter(|_| bench.run.supports("unmountdevice")) else {
        return bench.unmount_and_detach(&mount_point);
    };
    bench.unmount_and_remove(&mount_point)?;
    let held = File::open(&node.dir).context("open the node's directory")?;
    stays(bench, &node)?;
    drop(held);
    bench.unmount_and_detach(&node)
}

/// Unmounts a volume that is in use, and checks that it stays usable.
fn stays(bench: &Bench, mount_point: &MountPoint) -> Verdict {
    let call = bench.unmount(mount_point)?;
    if !call.failed() && !call.not_supported() {
        let found = if call.succeeded() {
            "Success"
        } else {
            "no reply"
        };
        return Err(wrong(&call, "a Failure while a file is open", found));
    }
    if mounts::at(&mount_point.dir)?.is_empty() {
        return Err(wrong(&call, "the volume is mounted still", "it is not"));
    }
    Ok(())
}

fn keeps_data(bench: &Bench) -> Verdict {
    bench.needs_kept_content()?;
    let volume = bench.volume()?;
    for round in 0..3 {
        let mount_point = bench.attach_and_mount(&volume, &format!("sanity-pod-{round}"), "rw")?;
        if round > 0 {
            files::expect(bench, &mount_point, "kept", TEXT)?;
        }
        files::write(bench, &mount_point, "kept", TEXT)?;
        bench.unmount_and_detach(&mount_point)?;
    }
    Ok(())
}
