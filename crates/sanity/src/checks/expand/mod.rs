//! Checks of growing. Stock Kubernetes calls only `expandfs`, on the node; flexvol's agent calls `expandvolume` too.

mod measure;
mod never_shrinks;
mod two_callers;

use crate::{
    bench::{Bench, MountPoint, files},
    callout::call::{Call, Outcome},
    check::{Check, Level, Need},
    checks::kill::Cuts,
    system::{command::SignalTo, mounts},
    verdict::{Stop, Verdict, fault, not_applicable, wrong},
    volume::{Release, Stage},
};
use anyhow::Result;
use measure::{Base, MIB, size};

/// Requirements of most checks of the group, and the source of their rules.
const NEEDS: &[Need] = &[Need::Root, Need::Fresh];
const SOURCE: &str = "expandFS in operation_generator.go and NodeExpand in pkg/volume/flexvolume/expander.go, 1.13 to 1.37";

pub const CHECKS: &[Check] = &[
    Check {
        name: "exp.grow-online",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "expandfs grows a mounted volume, as the kernel counts it, or says why and grows it before the next pod starts",
        why: "the claim gets the size that was asked for whatever happened: a Success without growth is found when the disk is full",
        broke: "of 23 drivers one had expandfs, and that said Success for file systems it did not know",
        mend: "grow storage and file system in expandfs, and compare the file system's size with NEW before answering",
        source: SOURCE,
        run: grow,
    },
    Check {
        name: "exp.repeat-noop",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "expandfs to a size that is there succeeds and changes nothing",
        why: "kubelet repeats it, 1.24 and 1.28 twice for every start of a pod",
        broke: "drivers that pass on lvextend's \"matches existing size\"",
        mend: "Success if the file system has NEW bytes or more",
        source: SOURCE,
        run: repeat,
    },
    Check {
        name: "exp.shrink-refused",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "expandfs to less never makes anything smaller",
        why: "OLD and NEW come from objects that people edit; a cut device destroys its file system",
        broke: "drivers that hand NEW to a command that also shrinks",
        mend: "compare with the size there is; Failure, or Success without a change",
        source: SOURCE,
        run: shrink,
    },
    Check {
        name: "exp.volume-never-shrinks",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "expandvolume to a size between OLD and what is there, or to OLD itself, succeeds, makes nothing smaller, and answers no less than there is",
        why: "an earlier call may have grown the storage without its answer arriving: then OLD is too small, and NEW may be too",
        broke: "drivers that compare NEW with OLD and hand it to a command that also shrinks",
        mend: "measure the storage; if it has NEW bytes or more, Success with volumeNewSize as measured",
        source: "flex-spec.md, expandvolume",
        run: never_shrinks::volume,
    },
    Check {
        name: "exp.not-multiple-of-sector",
        level: Level::Should,
        needs: NEEDS,
        alone: false,
        what: "a size that is no multiple of a block is reached, or refused",
        why: "claims of 1G and of 1.5Gi are as good as those of 1Gi",
        broke: "drivers that cut the size down, and so have less than was asked for",
        mend: "round up to what the storage can make",
        source: SOURCE,
        run: odd,
    },
    Check {
        name: "exp.data-intact",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "what was written before and between growths has its checksum after them",
        why: "this is what volumes are for",
        broke: "drivers that format when the size of the file system is not that of the device",
        mend: "never format in expandfs",
        source: SOURCE,
        run: data,
    },
    Check {
        name: "exp.interrupted-resumes",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "a growth that was killed is completed by its repetition, with the data that was there",
        why: "kubelet may be restarted at any time, and repeats the call until it succeeds",
        broke: "drivers that grow the file system only if they just grew the device",
        mend: "look at device and file system separately, every time",
        source: SOURCE,
        run: interrupted,
    },
    Check {
        name: "exp.any-directory",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "expandfs takes the node's directory or the pod's, with or without a device",
        why: "1.13 to 1.23 hand over the node's directory, later ones the pod's; without attach the device is empty",
        broke: "scripts that lose the empty argument, or look for the device they are not given",
        mend: "find the volume by its identity and its file system by what is mounted",
        source: SOURCE,
        run: any_directory,
    },
    Check {
        name: "exp.two-callers",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "of two calls of expandfs at once each that says Success says so, with the size, of a file system that has grown, and so does one that comes when the volume is unmounted",
        why: "init says concurrentFSResize: flexvol's agent calls beside kubelet, and the claim gets the size when the first has answered",
        broke: "drivers that answer Success because another call is at it, or because nothing is mounted",
        mend: "take the volume's lock and measure under it, or do not say concurrentFSResize",
        source: "flex-spec.md, init",
        run: two_callers::grow,
    },
];

/// Mounts a volume, if the driver supports growing.
fn mounted(bench: &Bench) -> Result<Base, Stop> {
    bench.needs_callout("expandfs")?;
    if !bench.run.capabilities.requires_fs_resize {
        return Err(not_applicable("init says requiresFSResize: false"));
    }
    let volume = bench.volume()?;
    let mount_point = bench.attach_and_mount(&volume, "sanity-pod", "rw")?;
    Ok(Base::of(bench, mount_point)?)
}

/// Calls `expandfs`. Returns whether it succeeded; otherwise it must be a Failure with a message.
fn expand(
    bench: &Bench,
    mount_point: &MountPoint,
    new: u64,
    old: u64,
) -> Result<(Call, bool), Stop> {
    let call = bench.call(&bench.expand_arguments(mount_point, new, old))?;
    match call.outcome() {
        Outcome::Success(_) => Ok((call, true)),
        Outcome::Failure(message) if !message.trim().is_empty() => {
            bench.note(format!("not grown: {message}"));
            Ok((call, false))
        }
        _ => Err(wrong(
            &call,
            "Success, or a Failure that says why",
            "something else",
        )),
    }
}

/// Calls `expandfs` where a refusal is a fault, because the check is about what follows.
fn expanded(bench: &Bench, mount_point: &MountPoint, new: u64, old: u64) -> Result<Call, Stop> {
    match expand(bench, mount_point, new, old)? {
        (call, true) => Ok(call),
        _ => {
            let why = "a volume that grows while it is mounted, which this driver refuses";
            Err(Stop::Skipped(why.to_owned()))
        }
    }
}

fn grow(bench: &Bench) -> Verdict {
    let base = mounted(bench)?;
    let mut mount_point = base.mount_point.clone();
    let (old, new) = (mount_point.volume.bytes, base.bytes + 256 * MIB);
    let (mut call, mut grown) = expand(bench, &mount_point, new, old)?;
    if !grown {
        base.check_not_smaller(bench, &call)?;
        bench.unmount_and_detach(&mount_point)?;
        // kubelet asks again when it has mounted the volume for the next pod.
        mount_point = bench.attach_and_mount(&mount_point.volume, "sanity-later", "rw")?;
        (call, grown) = expand(bench, &mount_point, new, old)?;
        if !grown {
            let expected = "a volume that grows, since init says requiresFSResize: true";
            let found = "it is refused, also before the next pod starts: the claim waits for ever";
            return Err(wrong(&call, expected, found));
        }
    }
    base.check_size(bench, &call, &mount_point, new)?;
    bench.unmount_and_detach(&mount_point)?;
    let mount_point = bench.attach_and_mount(&mount_point.volume, "sanity-last", "rw")?;
    base.check_size(bench, &call, &mount_point, new)?;
    bench.unmount_and_detach(&mount_point)
}

fn repeat(bench: &Bench) -> Verdict {
    let base = mounted(bench)?;
    let mount_point = &base.mount_point;
    let (old, new) = (mount_point.volume.bytes, base.bytes + 64 * MIB);
    let call = expanded(bench, mount_point, new, old)?;
    base.check_size(bench, &call, mount_point, new)?;
    let before = size(&mount_point.dir)?;
    for _ in 0..2 {
        let call = bench.call(&bench.expand_arguments(mount_point, new, old))?;
        if !call.succeeded() {
            return Err(wrong(&call, "Success", "something else"));
        }
        let now = size(&mount_point.dir)?;
        if now != before {
            let expected = format!("{before} bytes as before");
            return Err(wrong(&call, expected, format!("{now}")));
        }
    }
    bench.unmount_and_detach(mount_point)
}

fn shrink(bench: &Bench) -> Verdict {
    let base = mounted(bench)?;
    let (old, new) = (
        base.mount_point.volume.bytes,
        base.mount_point.volume.bytes / 2,
    );
    for old in [old, new] {
        let call = bench.call(&bench.expand_arguments(&base.mount_point, new, old))?;
        if !call.succeeded() && !call.failed() {
            return Err(wrong(&call, "Success or a Failure", "no reply"));
        }
        base.check_not_smaller(bench, &call)?;
    }
    bench.unmount_and_detach(&base.mount_point)
}

fn odd(bench: &Bench) -> Verdict {
    let base = mounted(bench)?;
    let (old, new) = (base.mount_point.volume.bytes, base.bytes + 64 * MIB + 1001);
    let (call, grown) = expand(bench, &base.mount_point, new, old)?;
    if grown {
        base.check_size(bench, &call, &base.mount_point, new)?;
    } else {
        // A driver that refuses an odd size must accept a round one.
        expanded(bench, &base.mount_point, base.bytes + 64 * MIB, old)?;
    }
    bench.unmount_and_detach(&base.mount_point)
}

/// Pseudorandom bytes for a seed.
fn pattern(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(1 << 20);
    while bytes.len() < 1 << 20 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes
}

fn data(bench: &Bench) -> Verdict {
    bench.needs_kept_content()?;
    let base = mounted(bench)?;
    let mut mount_point = base.mount_point;
    for round in 1..=3 {
        files::write(
            bench,
            &mount_point,
            &format!("round-{round}"),
            &pattern(round),
        )?;
        expand(
            bench,
            &mount_point,
            base.bytes + round * 64 * MIB,
            base.bytes + (round - 1) * 64 * MIB,
        )?;
        if round == 2 {
            bench.unmount_and_detach(&mount_point)?;
            mount_point = bench.attach_and_mount(&mount_point.volume, "sanity-later", "rw")?;
        }
        for earlier in 1..=round {
            let read = files::read(bench, &mount_point, &format!("round-{earlier}"));
            if read != Some(pattern(earlier)) {
                let found = format!("file {earlier} is gone or has other content");
                return Err(fault(format!("{round} files as they were written"), found));
            }
        }
    }
    bench.unmount_and_detach(&mount_point)
}

fn interrupted(bench: &Bench) -> Verdict {
    let base = mounted(bench)?;
    let (mount_point, old) = (&base.mount_point, base.mount_point.volume.bytes);
    let size = |step: u32| base.bytes + u64::from(step) * 32 * MIB;
    let writes = !bench.run.config.volume.read_only;
    if writes {
        files::write(bench, mount_point, "before", &pattern(7))?;
    }
    let first = expanded(bench, mount_point, size(1), old)?;
    let mut cuts = Cuts::new("a growth", first.took);
    for step in 2..=6 {
        let argv = bench.expand_arguments(mount_point, size(step), old);
        // The kills are spread over the duration of a growth.
        cuts.cut(bench, &argv, (step, 7), SignalTo::Group)?;
        let call = bench.call(&argv)?;
        if !call.succeeded() {
            return Err(wrong(&call, "the repetition succeeds", "it does not"));
        }
        base.check_size(bench, &call, mount_point, size(step))?;
        if writes {
            files::expect(bench, mount_point, "before", &pattern(7))?;
        }
    }
    bench.unmount_and_detach(mount_point)?;
    if writes && bench.keeps_content() {
        // A new mount shows what is on the storage.
        let later = bench.attach_and_mount(&mount_point.volume, "sanity-later", "rw")?;
        files::expect(bench, &later, "before", &pattern(7))?;
        bench.unmount_and_detach(&later)?;
    }
    cuts.require_hits(bench)
}

fn any_directory(bench: &Bench) -> Verdict {
    let base = mounted(bench)?;
    let mount_point = &base.mount_point;
    let node = bench.mount_point(&mount_point.volume, &mount_point.uid, Stage::Node);
    let mut mount_points = vec![mount_point.clone()];
    if mount_point.stage == Stage::Pod && !mounts::at(&node.dir)?.is_empty() {
        mount_points.push(MountPoint {
            device: mount_point.device.clone(),
            ..node.clone()
        });
        mount_points.push(node);
    }
    mount_points.push(MountPoint {
        device: String::new(),
        ..mount_point.clone()
    });
    for (step, one) in (1..).zip(&mount_points) {
        let release = if one.stage == Stage::Node {
            Release::V1_13
        } else {
            Release::V1_25
        };
        let one = MountPoint {
            volume: one.volume.seen_by(release),
            ..one.clone()
        };
        let size = base.bytes + step * 32 * MIB;
        let call = expanded(bench, &one, size, mount_point.volume.bytes)?;
        base.check_size(bench, &call, mount_point, size)?;
    }
    bench.unmount_and_detach(mount_point)
}
