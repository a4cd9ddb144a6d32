//! Checks of `isattached` and `detach`, as the controller manager calls them.

use crate::{
    bench::{
        Bench, MountPoint,
        files::{self, TEXT},
    },
    callout::call::Outcome,
    check::{Check, Level, Need},
    checks::attach::{attach_or_none, attachable, detach, is_attached, still_attached},
    system::mounts,
    verdict::{Verdict, wrong},
};

pub const CHECKS: &[Check] = &[
    Check {
        name: "isa.true-after-attach",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "isattached says true of an attached volume",
        why: "false, and a missing attached, let the controller attach it to another node while a pod writes",
        broke: "drivers that write \"Attached\" as a string, or ask for another node",
        mend: "answer attached as true or false, or Not supported",
        source: "VolumesAreAttached in attacher.go; MarkVolumeAsDetached by the controller, 1.6 to 1.37",
        run: |bench| {
            let volume = attachable(bench, "isattached")?;
            attach_or_none(bench, &volume)?;
            let (call, is) = is_attached(bench, &volume, bench.run.node())?;
            if is {
                Ok(())
            } else {
                Err(wrong(&call, "attached true", "false or nothing"))
            }
        },
    },
    Check {
        name: "isa.false-is-success",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "isattached says Success and false of a volume that is not attached",
        why: "a Failure ends the check of all volumes of that node, and true hides that the volume went away",
        broke: "a driver that reports false as a Failure, and the example for LVM, whose answer is always true",
        mend: "Failure only for errors; false only if it is certain",
        source: "VolumesAreAttached in pkg/volume/flexvolume/attacher.go, 1.6 to 1.37",
        run: |bench| {
            let volume = attachable(bench, "isattached")?;
            bench.needs_callout("detach")?;
            attach_or_none(bench, &volume)?;
            detach(bench, &volume, bench.run.node())?;
            let (call, is) = is_attached(bench, &volume, bench.run.node())?;
            if is {
                Err(wrong(&call, "attached false", "true"))
            } else {
                Ok(())
            }
        },
    },
    Check {
        name: "isa.error-is-not-false",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "isattached never says false of an attached volume because it could not find out",
        why: "the controller takes false for certain, and attaches the volume to another node while a pod writes",
        broke: "a driver whose every error of its backend was attached: false",
        mend: "Failure whenever it is not known",
        source: "VolumesAreAttached in pkg/volume/flexvolume/attacher.go, 1.6 to 1.37",
        run: errors_are_not_false,
    },
    Check {
        name: "det.happy",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "an attached volume is detached by its name and the node's, and can be attached again",
        why: "detach gets no options; a driver that needs some never detaches",
        broke: "drivers written after the documentation, which says detach gets the device",
        mend: "find the volume by name, or keep what is needed at attach",
        source: "Detach in pkg/volume/flexvolume/detacher.go: the volume's name, 1.6.5 to 1.37",
        run: |bench| {
            let volume = attachable(bench, "detach")?;
            attach_or_none(bench, &volume)?;
            detach(bench, &volume, bench.run.node())?;
            attach_or_none(bench, &volume).map(drop)
        },
    },
    Check {
        name: "det.repeat",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "detaching what was detached succeeds",
        why: "it is repeated after a lost answer; a Failure is repeated for ever",
        broke: "drivers that pass on \"not attached\"",
        mend: "Success if the volume is not on that node",
        source: "GenerateDetachVolumeFunc in operation_generator.go, 1.6 to 1.37",
        run: |bench| {
            let volume = attachable(bench, "detach")?;
            attach_or_none(bench, &volume)?;
            detach(bench, &volume, bench.run.node())?;
            detach(bench, &volume, bench.run.node())
        },
    },
    Check {
        name: "det.never-attached",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "detaching a volume that nobody knows succeeds",
        why: "the controller detaches what an attach may have left, and what was deleted meanwhile",
        broke: "drivers that look the volume up first",
        mend: "Success if there is no such volume",
        source: "GenerateDetachVolumeFunc in operation_generator.go, 1.6 to 1.37",
        run: |bench| {
            bench.needs_attach()?;
            bench.needs_callout("detach")?;
            detach(bench, &bench.run.missing_volume(), bench.run.node())
        },
    },
    Check {
        name: "det.wrong-node-noop",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "detaching from another node leaves the volume where it is",
        why: "detaches come late, after the pod moved: the running pod loses its disk",
        broke: "a driver that ignores the node's name",
        mend: "compare the node; Success if the volume is not there",
        source: "detach NAME NODE in detacher.go, 1.6 to 1.37",
        run: |bench| {
            let volume = attachable(bench, "detach")?;
            let device = attach_or_none(bench, &volume)?;
            let call = bench.call(&["detach", &volume.name, bench.run.other_node()])?;
            if !call.succeeded() && !call.failed() {
                return Err(wrong(&call, "Success or a Failure", "no reply"));
            }
            still_attached(bench, &volume, &device)
        },
    },
    Check {
        name: "det.busy-refused",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "detaching a mounted volume is refused, or takes nothing from who has it mounted",
        why: "after six minutes the controller detaches also what is in use; writes are lost without a word",
        broke: "drivers that detach by force",
        mend: "Failure while the device is in use on the node",
        source: "maxWaitForUnmountDuration in attach_detach_controller.go, 1.6 to 1.37",
        run: busy,
    },
];

/// Asks with invalid JSON, and without each option that identifies the volume. Options that all volumes share
/// are not left out: the driver may have a default for them, and then the question is about another volume.
fn errors_are_not_false(bench: &Bench) -> Verdict {
    let volume = attachable(bench, "isattached")?;
    attach_or_none(bench, &volume)?;
    let mut asked = vec!["{\"broken\"".to_owned(), "[]".to_owned()];
    let run = bench.run;
    let tells = |key: &&String| {
        run.source.is_fresh() && volume.options.get(*key) != run.missing_options.get(*key)
    };
    for key in volume.options.keys().filter(tells) {
        let mut less = volume.clone();
        less.options.remove(key);
        asked.push(less.json("rw"));
    }
    for json in asked {
        let call = bench.call(&["isattached", &json, bench.run.node()])?;
        if let Outcome::Success(reply) = call.outcome()
            && !reply.attached.unwrap_or(false)
        {
            let expected = "a Failure, or true: the volume is attached";
            return Err(wrong(&call, expected, "Success and false"));
        }
    }
    Ok(())
}

fn busy(bench: &Bench) -> Verdict {
    let volume = attachable(bench, "detach")?;
    let mount_point = bench.attach_and_mount(&volume, "sanity-pod", "rw")?;
    let pod = bench.bind_to_pod(&mount_point)?;
    for round in 0..2 {
        if round == 1 {
            // A pod's bind mount stays when the node's mount is gone.
            if pod.is_none() {
                break;
            }
            bench.unmount_and_remove(&mount_point)?;
        }
        let call = bench.call(&["detach", &volume.name, bench.run.node()])?;
        if !call.succeeded() && !call.failed() {
            return Err(wrong(&call, "Success or a Failure", "no reply"));
        }
        let dir = pod.clone().unwrap_or(mount_point.dir.clone());
        if mounts::at(&dir)?.is_empty() {
            return Err(wrong(&call, "the volume is mounted still", "it is not"));
        }
        let seen = MountPoint {
            dir,
            ..mount_point.clone()
        };
        let written = files::try_write(bench, &seen, "sanity", TEXT);
        if let Err(error) = written
            && !bench.run.config.volume.read_only
        {
            let expected = "what is mounted can be written";
            return Err(wrong(&call, expected, error.to_string()));
        }
        if call.failed() {
            bench.note("refused");
        }
    }
    bench.unbind_from_pod(pod)?;
    bench.unmount_and_detach(&mount_point)
}
