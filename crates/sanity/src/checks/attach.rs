//! Checks of `attach` and `waitforattach`, as the controller manager and kubelet call them.

use crate::{
    bench::{
        Bench,
        files::{self, TEXT},
    },
    callout::call::{Call, CallOptions, Exit, Outcome},
    check::{Check, Level, Need},
    system::command::SignalTo,
    verdict::{Stop, Verdict, not_applicable, wrong},
    volume::{Source, Volume},
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
            if device.is_empty() && bench.attach_and_wait(&volume, "rw")?.is_empty() {
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
            let mut call = bench.call(&bench.run.missing_volume_arguments("attach", &bench.dir))?;
            if let Outcome::Success(reply) = call.outcome() {
                // The controller manager may run where the driver cannot see devices; kubelet runs on the node.
                let (volume, device) =
                    (bench.run.missing_volume(), reply.device.unwrap_or_default());
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
];

pub fn attachable(bench: &Bench, callout: &str) -> Result<Volume, Stop> {
    bench.needs_attach()?;
    bench.needs_callout(callout)?;
    bench.volume()
}

pub fn attach(bench: &Bench, volume: &Volume, node: &str) -> Result<(Call, String), Stop> {
    let call = bench.attach(volume, "rw", node)?;
    match call.outcome() {
        Outcome::Success(reply) => Ok((call, reply.device.unwrap_or_default())),
        _ => Err(wrong(&call, "Success", "something else")),
    }
}

/// Calls `attach` if the driver supports it.
pub fn attach_or_none(bench: &Bench, volume: &Volume) -> Result<String, Stop> {
    if !bench.run.supports("attach") {
        return Ok(String::new());
    }
    attach(bench, volume, bench.run.node()).map(|(_, device)| device)
}

pub fn detach(bench: &Bench, volume: &Volume, node: &str) -> Verdict {
    let call = bench.call(&["detach", &volume.name, node])?;
    if call.succeeded() {
        Ok(())
    } else {
        Err(wrong(&call, "Success", "something else"))
    }
}

pub fn is_attached(bench: &Bench, volume: &Volume, node: &str) -> Result<(Call, bool), Stop> {
    let call = bench.call(&["isattached", &volume.json("rw"), node])?;
    match call.outcome() {
        Outcome::Success(reply) => Ok((call, reply.attached.unwrap_or(false))),
        _ => Err(wrong(&call, "Success", "something else")),
    }
}

/// Checks that the volume is attached, with `isattached` or else with `waitforattach`.
pub fn still_attached(bench: &Bench, volume: &Volume, device: &str) -> Verdict {
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
    let mount_point = bench.attach_and_mount(&volume, "sanity-pod", "rw")?;
    if let Err(error) = files::try_write(bench, &mount_point, "sanity", TEXT) {
        return Err(wrong(
            &call,
            "a device that can be written",
            error.to_string(),
        ));
    }
    bench.unmount_and_detach(&mount_point)
}

/// A device that does not exist.
const NEVER: &str = "/dev/sanity-never";

fn terminated(bench: &Bench) -> Verdict {
    bench.needs_attach()?;
    bench.needs_callout("waitforattach")?;
    let options = CallOptions {
        signal: Some((Duration::from_secs(1), Signal::SIGTERM, SignalTo::Process)),
        deadline: Some(Duration::from_secs(11)),
        ..CallOptions::default()
    };
    // A driver waits for the device of an existing volume, but may refuse a volume that does not exist.
    let volume = match bench.run.source {
        Source::None => bench.run.missing_volume(),
        _ => bench.volume()?,
    };
    let call = bench.call_with_options(&["waitforattach", NEVER, &volume.json("rw")], &options)?;
    let found = match (call.exit, call.outcome()) {
        (Exit::Deadline, _) => {
            let expected = "an end within ten seconds of SIGTERM";
            return Err(wrong(&call, expected, "none"));
        }
        (_, Outcome::Success(reply)) => reply.device.unwrap_or_default(),
        _ => return Ok(()),
    };
    // A driver may find the device without the caller's help.
    if found != NEVER {
        return Ok(());
    }
    let expected = "no Success for a device that never came";
    Err(wrong(&call, expected, "Success"))
}
