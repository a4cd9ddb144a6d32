//! Storage that is larger than the caller of `expandvolume` knows.

use super::{
    expand,
    measure::{Base, MIB},
};
use crate::{
    bench::{Bench, MountPoint},
    callout::call::{Call, Outcome},
    verdict::{Stop, Verdict, wrong},
    volume::Stage,
};

pub(super) fn volume(bench: &Bench) -> Verdict {
    bench.needs_callout("expandvolume")?;
    let volume = bench.volume()?;
    let mut base = Base::of(bench, bench.attach_and_mount(&volume, "sanity-pod", "rw")?)?;
    let (first, between, larger) = (volume.bytes, base.bytes + 64 * MIB, base.bytes + 128 * MIB);
    grown(bench, &base.mount_point, larger, first)?;
    if bench.run.capabilities.requires_fs_resize && bench.run.supports("expandfs") {
        // A driver may refuse to grow it while it is mounted.
        expand(bench, &base.mount_point, larger, first)?;
    }
    base = Base::of(bench, base.mount_point)?;
    // The answer that the storage is larger was lost, and less is asked for now. Then the storage is measured.
    keeps(bench, &base, between, first, larger)?;
    keeps(bench, &base, first, first, larger)?;
    bench.unmount_and_detach(&base.mount_point)?;
    // A new mount shows what is on the storage.
    base.mount_point = bench.attach_and_mount(&volume, "sanity-later", "rw")?;
    keeps(bench, &base, larger, larger, larger)?;
    bench.unmount_and_detach(&base.mount_point)
}

/// Checks that a call for what is there already succeeds, and makes nothing smaller.
fn keeps(bench: &Bench, base: &Base, new: u64, old: u64, has: u64) -> Verdict {
    let call = call(bench, &base.mount_point, new, old)?;
    if !call.succeeded() {
        let expected = format!("Success: the volume has {has} bytes already");
        return Err(wrong(&call, expected, "it does not succeed"));
    }
    answers(&call, has)?;
    base.check_not_smaller(bench, &call)
}

/// Calls `expandvolume` as the agent does, with kubelet's directory of the node.
fn call(bench: &Bench, mount_point: &MountPoint, new: u64, old: u64) -> Result<Call, Stop> {
    let volume = &mount_point.volume;
    let node = bench.mount_point(volume, &mount_point.uid, Stage::Node);
    bench.call(&[
        "expandvolume",
        &volume.json("rw"),
        &node.dir.to_string_lossy(),
        &new.to_string(),
        &old.to_string(),
    ])
}

/// Grows the storage, or stops the check.
fn grown(bench: &Bench, mount_point: &MountPoint, new: u64, old: u64) -> Verdict {
    let call = call(bench, mount_point, new, old)?;
    bench.needs_support(&call)?;
    match call.outcome() {
        Outcome::Success(_) => answers(&call, new),
        Outcome::Failure(message) => {
            let why = format!("storage that grows, which this driver refuses: {message}");
            Err(Stop::Skipped(why))
        }
        _ => Err(wrong(&call, "Success or a Failure", "no reply")),
    }
}

/// Checks that a size in the reply, if there is one, is not below this.
fn answers(call: &Call, least: u64) -> Verdict {
    let said = match call.outcome() {
        Outcome::Success(reply) => reply.volume_new_size,
        _ => None,
    };
    match said {
        Some(size) if u64::try_from(size).unwrap_or(0) < least => {
            let expected = format!("volumeNewSize of {least} bytes or more, if any");
            Err(wrong(call, expected, size.to_string()))
        }
        _ => Ok(()),
    }
}
