//! The controller attaches and detaches, kubelet waits for the device.

use crate::{
    bench::{Bench, Place},
    call::{Call, Exit, Manner, Outcome, To},
    check::{Check, Level, Need, Stop, Verdict, not_applicable, wrong},
    checks::mnt::TEXT,
    data,
    volume::{Source, Volume},
    world,
};
use nix::sys::signal::Signal;
use std::time::Duration;

pub const CHECKS: &[Check] = &[
    Check {
        name: "att.happy",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "a volume is attached, and its device is told by attach or by waitforattach",
        why: "without that no pod with it ever starts",
        broke: "drivers whose devices change while they look for the new one",
        mend: "answer with a name of the device that stays, such as one of /dev/disk/by-id",
        source: "Attach in pkg/volume/flexvolume/attacher.go, 1.6 to 1.37",
        run: |bench| {
            let volume = attachable(bench, "attach")?;
            let (call, device) = attach(bench, &volume, bench.run.node())?;
            if device.is_empty() && bench.attached(&volume, "rw")?.is_empty() {
                let expected = "a device from attach, or from waitforattach after it";
                return Err(wrong(&call, expected, "neither names one"));
            }
            Ok(())
        },
    },
    Check {
        name: "att.repeat-same-device",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "attaching again to the same node succeeds with the same device",
        why: "the controller repeats it after errors and restarts; a Failure is repeated for ever",
        broke: "drivers that pass on \"already attached\", one of them as a crash",
        mend: "look where it is attached first; Success if it is here",
        source: "GenerateAttachVolumeFunc in operation_generator.go, 1.6 to 1.37",
        run: |bench| {
            let volume = attachable(bench, "attach")?;
            let (_, first) = attach(bench, &volume, bench.run.node())?;
            let (call, again) = attach(bench, &volume, bench.run.node())?;
            if first != again {
                return Err(wrong(
                    &call,
                    format!("{first:?} again"),
                    format!("{again:?}"),
                ));
            }
            Ok(())
        },
    },
    Check {
        name: "att.missing-volume",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "a volume that does not exist is refused by attach, or on its node by waitforattach",
        why: "the node's status would name a device that never comes, or another volume's",
        broke: "scripts that answer Success whatever they found",
        mend: "Failure that says which volume is missing",
        source: "Attach in pkg/volume/flexvolume/attacher.go, 1.6 to 1.37",
        run: |bench| {
            bench.needs_attach()?;
            bench.needs_callout("attach")?;
            let mut call = bench.call(&bench.run.nobody("attach", &bench.dir))?;
            if let Outcome::Success(reply) = call.outcome() {
                // Where the controller runs there may be no way to look; on the node there is.
                let (volume, device) = (bench.run.nobodys(), reply.device.unwrap_or_default());
                let argv = bench
                    .run
                    .arguments("waitforattach", &volume, &bench.dir, &device);
                call = bench.call(&argv)?;
            }
            if call.failed() {
                return Ok(());
            }
            let expected = "a Failure from attach, or from waitforattach at the latest";
            Err(wrong(&call, expected, "something else"))
        },
    },
    Check {
        name: "att.other-node-refused",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "attaching elsewhere does not take the volume from the node that has it",
        why: "two nodes that write one file system destroy it; the first one's pod is still running",
        broke: "a driver that detaches the disk from whatever node has it, one that took busy anywhere for attached here",
        mend: "Failure that names the node that has it; never detach for an attach",
        source: "the controller checks access modes of ReadWriteOnce alone (attach_detach_controller.go)",
        run: other_node,
    },
    Check {
        name: "att.ro-rw-conflict",
        level: Level::Should,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "a volume that was attached read-only and is then wanted writable can be written, or is refused",
        why: "Success for a device that stays read-only shows as an I/O error in a database",
        broke: "drivers that answer already attached without comparing how",
        mend: "compare the mode of the attachment with what is asked",
        source: "kubernetes.io/readwrite in driver-call.go, which attach gets too",
        run: read_only_first,
    },
    Check {
        name: "wfa.returns-device",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "waitforattach answers with a device",
        why: "its device replaces that of attach; with an empty one kubelet's own mountdevice does nothing and says Success",
        broke: "drivers that print Success alone",
        mend: "answer with the device that was given, at least",
        source: "WaitForAttach in attacher.go and MountDevice in attacher-defaults.go, 1.6 to 1.37",
        run: |bench| {
            let volume = attachable(bench, "waitforattach")?;
            let device = attach_or_none(bench, &volume)?;
            let call = bench.call(&["waitforattach", &device, &volume.json("rw")])?;
            match call.outcome() {
                Outcome::Success(reply) if reply.device.as_deref().unwrap_or("").is_empty() => {
                    Err(wrong(&call, "a device", "none"))
                }
                Outcome::Success(_) => Ok(()),
                _ => Err(wrong(&call, "Success with a device", "something else")),
            }
        },
    },
    Check {
        name: "wfa.timeout",
        level: Level::Should,
        needs: &[],
        alone: false,
        what: "waitforattach for a device that never comes ends within ten seconds of SIGTERM",
        why: "kubelet sends it after ten minutes; a driver that still runs ten seconds later crashes kubelet",
        broke: "scripts that wait in a sleep, which the signal does not reach",
        mend: "end on SIGTERM, with the children",
        source: "Stop in k8s.io/utils/exec, to 1.37; waitForAttachTimeout in volume_manager.go",
        run: terminated,
    },
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
            detach(bench, &bench.run.nobodys(), bench.run.node())
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

fn attachable(bench: &Bench, callout: &str) -> Result<Volume, Stop> {
    bench.needs_attach()?;
    bench.needs_callout(callout)?;
    bench.volume()
}

fn attach(bench: &Bench, volume: &Volume, node: &str) -> Result<(Call, String), Stop> {
    let call = bench.attach(volume, "rw", node)?;
    match call.outcome() {
        Outcome::Success(reply) => Ok((call, reply.device.unwrap_or_default())),
        _ => Err(wrong(&call, "Success", "something else")),
    }
}

/// Attaches, where that is a callout of the driver's.
fn attach_or_none(bench: &Bench, volume: &Volume) -> Result<String, Stop> {
    if !bench.run.supports("attach") {
        return Ok(String::new());
    }
    attach(bench, volume, bench.run.node()).map(|(_, device)| device)
}

fn detach(bench: &Bench, volume: &Volume, node: &str) -> Verdict {
    let call = bench.call(&["detach", &volume.name, node])?;
    if call.succeeded() {
        Ok(())
    } else {
        Err(wrong(&call, "Success", "something else"))
    }
}

fn is_attached(bench: &Bench, volume: &Volume, node: &str) -> Result<(Call, bool), Stop> {
    let call = bench.call(&["isattached", &volume.json("rw"), node])?;
    match call.outcome() {
        Outcome::Success(reply) => Ok((call, reply.attached.unwrap_or(false))),
        _ => Err(wrong(&call, "Success", "something else")),
    }
}

/// By isattached, else by what waitforattach finds.
fn still_attached(bench: &Bench, volume: &Volume, device: &str) -> Verdict {
    if bench.run.supports("isattached") {
        let (call, is) = is_attached(bench, volume, bench.run.node())?;
        if !is {
            return Err(wrong(&call, "the first node has it still", "it lost it"));
        }
    } else if bench.run.supports("waitforattach") {
        let call = bench.call(&["waitforattach", device, &volume.json("rw")])?;
        if !call.succeeded() {
            return Err(wrong(&call, "the first node has it still", "it lost it"));
        }
    } else {
        return Err(not_applicable(
            "isattached and waitforattach are Not supported",
        ));
    }
    Ok(())
}

fn other_node(bench: &Bench) -> Verdict {
    let volume = attachable(bench, "attach")?;
    let (_, device) = attach(bench, &volume, bench.run.node())?;
    let call = bench.attach(&volume, "rw", bench.run.other_node())?;
    if !call.succeeded() && !call.failed() {
        return Err(wrong(&call, "Success or a Failure", "no reply"));
    }
    still_attached(bench, &volume, &device)
}

fn read_only_first(bench: &Bench) -> Verdict {
    let volume = attachable(bench, "attach")?;
    let call = bench.call(&["attach", &volume.json("ro"), bench.run.node()])?;
    if !call.succeeded() {
        return if call.failed() {
            Ok(())
        } else {
            Err(wrong(&call, "Success or a Failure", "no reply"))
        };
    }
    let call = bench.call(&["attach", &volume.json("rw"), bench.run.node()])?;
    if call.failed() {
        return Ok(());
    }
    let place = bench.up(&volume, "sanity-pod", "rw")?;
    if let Err(error) = data::try_write(bench, &place, "sanity", TEXT) {
        return Err(wrong(
            &call,
            "a device that can be written",
            error.to_string(),
        ));
    }
    bench.down(&place)
}

/// A device that there is not.
const NEVER: &str = "/dev/sanity-never";

fn terminated(bench: &Bench) -> Verdict {
    bench.needs_attach()?;
    bench.needs_callout("waitforattach")?;
    let manner = Manner {
        signal: Some((Duration::from_secs(1), Signal::SIGTERM, To::Driver)),
        deadline: Some(Duration::from_secs(11)),
        ..Manner::default()
    };
    // One that exists and is not attached is waited for; of another nothing need be.
    let volume = match bench.run.source {
        Source::None => bench.run.nobodys(),
        _ => bench.volume()?,
    };
    let call = bench.call_as(&["waitforattach", NEVER, &volume.json("rw")], &manner)?;
    let found = match (call.exit, call.outcome()) {
        (Exit::Deadline, _) => {
            let expected = "an end within ten seconds of SIGTERM";
            return Err(wrong(&call, expected, "none"));
        }
        (_, Outcome::Success(reply)) => reply.device.unwrap_or_default(),
        _ => return Ok(()),
    };
    // A driver may know better than the caller where the device is.
    if found != NEVER {
        return Ok(());
    }
    let expected = "no Success for a device that never came";
    Err(wrong(&call, expected, "Success"))
}

/// Leaves out of the volume's options what tells it from others, and asks with nonsense. What all volumes
/// have alike may have a default: without it the question is for another volume.
fn errors_are_not_false(bench: &Bench) -> Verdict {
    let volume = attachable(bench, "isattached")?;
    attach_or_none(bench, &volume)?;
    let mut asked = vec!["{\"broken\"".to_owned(), "[]".to_owned()];
    let run = bench.run;
    let tells =
        |key: &&String| run.source.is_fresh() && volume.options.get(*key) != run.gone.get(*key);
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
    let place = bench.up(&volume, "sanity-pod", "rw")?;
    let pod = bench.bound(&place)?;
    for round in 0..2 {
        if round == 1 {
            // A pod that was bound to it keeps it when the node's mount has gone.
            if pod.is_none() {
                break;
            }
            bench.unmounted(&place)?;
        }
        let call = bench.call(&["detach", &volume.name, bench.run.node()])?;
        if !call.succeeded() && !call.failed() {
            return Err(wrong(&call, "Success or a Failure", "no reply"));
        }
        let dir = pod.clone().unwrap_or(place.dir.clone());
        if world::mounts_at(&dir)?.is_empty() {
            return Err(wrong(&call, "the volume is mounted still", "it is not"));
        }
        let seen = Place {
            dir,
            ..place.clone()
        };
        let written = data::try_write(bench, &seen, "sanity", TEXT);
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
    bench.unbound(pod)?;
    bench.down(&place)
}
