//! Checks of whole life cycles: of several releases of Kubernetes, and with calls repeated, lost or reordered.

use crate::{
    bench::{
        Bench, MountPoint,
        files::{self, TEXT},
    },
    callout::{argument, call::Call},
    check::{Check, Level, Need},
    checks::mount::mount_with,
    system::mounts,
    verdict::{Stop, Verdict, fault, readable, wrong},
    volume::{Release, Stage},
};

/// Requirements of most checks of the group, and the source of their rules.
const NEEDS: &[Need] = &[Need::Root, Need::Volume];
const SOURCE: &str = "attacher.go, mounter.go and detacher.go of pkg/volume/flexvolume, 1.6 to 1.37; reconstruct.go of the volume manager";

pub const CHECKS: &[Check] = &[
    Check {
        name: "life.1-6",
        level: Level::Warn,
        needs: NEEDS,
        alone: false,
        what: "a volume lives through the arguments of Kubernetes 1.6: no name, no pod",
        why: "clusters of that age still run; a driver that needs the pod cannot serve them",
        broke: "drivers that find volumes by name, or ask for the pod's namespace",
        mend: "take what is missing for unknown, where that is safe",
        source: SOURCE,
        run: |bench| release(bench, Release::V1_6),
    },
    Check {
        name: "life.1-13",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "a volume lives through the arguments of Kubernetes 1.13 to 1.24",
        why: "these are the releases most FlexVolume drivers run on",
        broke: "drivers that look for a key that came later, or left",
        mend: "read the keys of every release",
        source: SOURCE,
        run: |bench| release(bench, Release::V1_13),
    },
    Check {
        name: "life.1-25",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "a volume lives through the arguments of Kubernetes 1.25 and later",
        why: "these are the releases that are still maintained",
        broke: "drivers that look for a key that was renamed",
        mend: "read the keys of every release",
        source: SOURCE,
        run: |bench| release(bench, Release::V1_25),
    },
    Check {
        name: "life.restart-anywhere",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "kubelet may restart between any two callouts: what it does then changes nothing",
        why: "after a restart it asks with the volume's name alone, mounts what is mounted, and unmounts by path",
        broke: "drivers that need the options, or a daemon's memory, to unmount",
        mend: "find everything from the directory and the kernel's mount table",
        source: SOURCE,
        run: restarts,
    },
    Check {
        name: "life.duplicated",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "every callout twice is as good as once: what was lost on the way is repeated",
        why: "answers are lost with every restart of kubelet and of the controller",
        broke: "drivers whose second call fails because the first succeeded",
        mend: "make every callout idempotent",
        source: SOURCE,
        run: duplicated,
    },
    Check {
        name: "life.reordered",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "callouts out of order are refused or without effect, and the life goes on",
        why: "kubelet and the controller do not wait for each other, and old calls outlive their callers",
        broke: "drivers that take the order for granted",
        mend: "look at what is there before each step",
        source: SOURCE,
        run: reordered,
    },
];

/// Writes a file unless the volume is read-only.
fn write(bench: &Bench, mount_point: &MountPoint) -> Verdict {
    if bench.run.config.volume.read_only {
        return Ok(());
    }
    files::write(bench, mount_point, "life", TEXT)
}

fn read(bench: &Bench, call: &Call, mount_point: &MountPoint) -> Verdict {
    match files::read(bench, mount_point, "life") {
        Some(found) if found == TEXT => Ok(()),
        _ if bench.run.config.volume.read_only => Ok(()),
        _ => Err(wrong(
            call,
            "the file that was written",
            "it is gone, or has other content",
        )),
    }
}

/// Like [`read`], after the volume was unmounted.
fn read_later(bench: &Bench, call: &Call, mount_point: &MountPoint) -> Verdict {
    match bench.keeps_content() {
        true => read(bench, call, mount_point),
        false => Ok(()),
    }
}

fn release(bench: &Bench, release: Release) -> Verdict {
    let volume = bench.volume()?.seen_by(release);
    let mount_point = bench.attach_and_mount(&volume, "sanity-pod", "rw")?;
    let pod = bench.bind_to_pod(&mount_point)?;
    write(bench, &mount_point)?;
    bench.unbind_from_pod(pod)?;
    bench.unmount_and_detach(&mount_point)?;
    let mount_point = bench.prepare_final_mount(&volume, "sanity-later", "rw")?;
    let call = with_group(bench, &mount_point, release)?;
    bench.expect_mounted(&mount_point, &call)?;
    read_later(bench, &call, &mount_point)?;
    bench.unmount_and_detach(&mount_point)
}

/// Mounts for a pod with an fsGroup, in the key of the release. Only for volumes that were made for the check:
/// the driver may change the owner of all files.
fn with_group(bench: &Bench, mount_point: &MountPoint, release: Release) -> Result<Call, Stop> {
    if mount_point.stage != Stage::Pod || !bench.run.source.is_fresh() {
        return bench.mount(mount_point, "rw");
    }
    let key = if release < Release::V1_25 {
        argument::FS_GROUP_BEFORE
    } else {
        argument::FS_GROUP
    };
    mount_with(bench, mount_point, &[(key, "4711")])
}

fn restarts(bench: &Bench) -> Verdict {
    let volume = bench.volume()?;
    bench.restart_always();
    let mount_point = bench.attach_and_mount(&volume, "sanity-pod", "rw")?;
    write(bench, &mount_point)?;
    // A restarted kubelet finds the volume in a running pod, and repeats attach and mount.
    bench.attach_and_wait(&volume, "rw")?;
    let call = bench.mount(&mount_point, "rw")?;
    bench.expect_mounted_once(&mount_point, &call)?;
    read(bench, &call, &mount_point)?;
    if bench.run.supports("expandfs") && bench.run.source.is_fresh() {
        let argv = bench.expand_arguments(&mount_point, volume.bytes, volume.bytes);
        readable(&bench.call(&argv)?)?;
        read(bench, &call, &mount_point)?;
    }
    // One unmount must suffice; `down` repeats it, as kubelet does after a lost answer.
    let call = bench.unmount(&mount_point)?;
    bench.expect_unmounted(&mount_point, &call)?;
    bench.unmount_and_detach(&mount_point)?;
    let mount_point = bench.attach_and_mount(&volume, "sanity-later", "rw")?;
    read_later(bench, &call, &mount_point)?;
    bench.unmount_and_detach(&mount_point)
}

fn duplicated(bench: &Bench) -> Verdict {
    let volume = bench.volume()?;
    let twice = |argv: &[String]| -> Result<Call, Stop> {
        bench.call(argv)?;
        let last = bench.call(argv)?;
        if !last.succeeded() && !last.not_supported() {
            return Err(wrong(&last, "Success again", "something else"));
        }
        Ok(last)
    };
    if bench.run.capabilities.attach && bench.run.supports("attach") {
        twice(&bench.run.arguments("attach", &volume, &bench.dir, ""))?;
    }
    let mount_point = bench.prepare_final_mount(&volume, "sanity-pod", "rw")?;
    bench.mount(&mount_point, "rw")?;
    let call = bench.mount(&mount_point, "rw")?;
    bench.expect_mounted_once(&mount_point, &call)?;
    let call = twice(&bench.unmount_arguments(&mount_point))?;
    bench.expect_unmounted(&mount_point, &call)?;
    bench.unmount_and_detach(&mount_point)?;
    if bench.run.capabilities.attach && bench.run.supports("detach") {
        twice(&bench.run.arguments("detach", &volume, &bench.dir, ""))?;
    }
    Ok(())
}

fn reordered(bench: &Bench) -> Verdict {
    let volume = bench.volume()?;
    let pod = bench.mount_point(&volume, "sanity-pod", Stage::Pod);
    // Nothing is mounted yet.
    readable(&bench.call(&bench.unmount_arguments(&pod))?)?;
    readable(&bench.call(&bench.expand_arguments(&pod, volume.bytes, volume.bytes))?)?;
    if bench.run.capabilities.attach {
        readable(&bench.call(&bench.run.arguments("detach", &volume, &bench.dir, ""))?)?;
    }
    let mount_point = bench.attach_and_mount(&volume, "sanity-pod", "rw")?;
    write(bench, &mount_point)?;
    // The pod still uses the volume.
    if bench.run.capabilities.attach {
        let node = bench.mount_point(&volume, "sanity-pod", Stage::Node);
        if mount_point.stage == Stage::Pod {
            readable(&bench.call(&bench.unmount_arguments(&node))?)?;
        }
        readable(&bench.call(&bench.run.arguments("detach", &volume, &bench.dir, ""))?)?;
    }
    if mounts::at(&mount_point.dir)?.is_empty() {
        return Err(fault("the pod's mount stays", "it is gone"));
    }
    let call = bench.mount(&mount_point, "rw")?;
    bench.expect_mounted(&mount_point, &call)?;
    read(bench, &call, &mount_point)?;
    bench.unmount_and_detach(&mount_point)
}
