//! Checks of `delete`, as a provisioner calls it for a released persistent volume.

use crate::{
    bench::{
        Bench,
        files::{self, TEXT},
        provisioned::Provisioned,
    },
    callout::call::Call,
    check::{Check, Level},
    checks::{hostile_provision, provision::NEEDS},
    system::mounts,
    verdict::{Stop, Verdict, fault, readable, wrong},
    volume::Volume,
};

const SOURCE: &str =
    "flexvol's controller; external-storage's flex provisioner (flex/pkg/volume/delete.go)";

pub const CHECKS: &[Check] = &[
    Check {
        name: "del.repeat",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "deleting what was deleted succeeds",
        why: "it is repeated after a lost answer; a Failure is repeated for ever, and the persistent volume never goes",
        broke: "drivers that pass on \"no such volume\"",
        mend: "Success if the volume is not there",
        source: SOURCE,
        run: |bench| {
            let made = bench.provision_new()?;
            bench.delete(&made.volume)?;
            succeeds(&bench.call_delete(&made.volume)?, "deleted again")
        },
    },
    Check {
        name: "del.never-existed",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "deleting a volume that was never made succeeds",
        why: "a provisioner deletes what a failed provision may have left",
        broke: "drivers that look the volume up first",
        mend: "Success if there is no such volume",
        source: SOURCE,
        run: never_existed,
    },
    Check {
        name: "del.answer-lost",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "delete finds the volume by what provision was told, where its answer was lost",
        why: "a claim that is deleted at that moment leaves a disk that nobody will ever remove",
        broke: "drivers that find the volume by the options that provision answered alone",
        mend: "find it by its name if the options are not there",
        source: SOURCE,
        run: |bench| gone_for_good(bench, |volume| bench.call_delete_by_name(&volume.name)),
    },
    Check {
        name: "del.gone-for-good",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "after delete the name is free, and the next volume of that name is a new one",
        why: "space runs out, or the next claim of that name reads what was deleted",
        broke: "drivers that answered Success and only renamed the volume, or kept its name",
        mend: "remove the data and the name, and answer after that",
        source: SOURCE,
        run: |bench| gone_for_good(bench, |volume| bench.call_delete(volume)),
    },
    Check {
        name: "del.only-it",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "delete removes its own volume, and not one whose name begins alike",
        why: "somebody else's data is lost",
        broke: "scripts with rm and a * behind the name",
        mend: "compare whole names",
        source: SOURCE,
        run: only_it,
    },
    Check {
        name: "del.mounted-refused",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "deleting a volume that is mounted is refused, and harms nothing",
        why: "a pod that still writes loses its data, now or at its next start",
        broke: "drivers that unlink the file behind a mounted loop device, or unmount by force",
        mend: "look at the mounts and devices of the volume first; Failure while there are any",
        source: SOURCE,
        run: mounted,
    },
    Check {
        name: "del.hostile-values",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "no name and no option of delete leads out of the driver's own place: nothing is removed there",
        why: "whoever may make a persistent volume removes any directory of the node",
        broke: "drivers that run rm -rf on the path that an option names",
        mend: "check options as strictly as in mount, and open paths without following links",
        source: "options of a persistent volume are free text to the API server",
        run: hostile_provision::delete,
    },
];

fn succeeds(call: &Call, what: &str) -> Verdict {
    match call.succeeded() {
        true => Ok(()),
        false => Err(wrong(
            call,
            format!("Success: it was {what}"),
            "something else",
        )),
    }
}

fn never_existed(bench: &Bench) -> Verdict {
    let call = bench.call_delete_by_name(&bench.provision_name())?;
    bench.needs_support(&call)?;
    succeeds(&call, "never made")
}

fn write(bench: &Bench, made: &Provisioned) -> Verdict {
    bench.needs_kept_content()?;
    files::writable(bench)?;
    let mount_point = bench.attach_and_mount(&made.volume, "sanity-pod", "rw")?;
    files::write(bench, &mount_point, "kept", TEXT)?;
    bench.unmount_and_detach(&mount_point)
}

/// Whether the file is in the volume that now has this name.
fn has_file(bench: &Bench, made: &Provisioned) -> Result<bool, Stop> {
    let mount_point = bench.attach_and_mount(&made.volume, "sanity-later", "rw")?;
    let found = files::read(bench, &mount_point, "kept");
    bench.unmount_and_detach(&mount_point)?;
    Ok(found.as_deref() == Some(TEXT))
}

/// Deletes a volume with a file, and checks that its name leads to a new volume.
fn gone_for_good(bench: &Bench, delete: impl Fn(&Volume) -> Result<Call, Stop>) -> Verdict {
    let made = bench.provision_new()?;
    write(bench, &made)?;
    let call = delete(&made.volume)?;
    bench.expect_deleted(&made.volume.name, &call)?;
    let again = bench.provision(&made.volume.name, bench.run.bytes)?;
    if has_file(bench, &again)? {
        let expected = "the volume is gone after delete's Success";
        return Err(wrong(&call, expected, "provision finds it, with its files"));
    }
    Ok(())
}

fn only_it(bench: &Bench) -> Verdict {
    let made = bench.provision_new()?;
    let longer = format!("{}0", made.volume.name);
    let other = bench.provision(&longer, bench.run.bytes)?;
    write(bench, &other)?;
    let call = bench.call_delete(&made.volume)?;
    bench.expect_deleted(&made.volume.name, &call)?;
    let again = bench.provision(&longer, bench.run.bytes)?;
    if !again.is(&other) || !has_file(bench, &again)? {
        let expected = format!("volume {longer} is as it was");
        return Err(wrong(&call, expected, "it is gone"));
    }
    Ok(())
}

fn mounted(bench: &Bench) -> Verdict {
    let made = bench.provision_new()?;
    let mount_point = bench.attach_and_mount(&made.volume, "sanity-pod", "rw")?;
    let pod = bench.bind_to_pod(&mount_point)?;
    let writes = bench.keeps_files();
    if writes {
        files::write(bench, &mount_point, "kept", TEXT)?;
    }
    let call = bench.call_delete(&made.volume)?;
    readable(&call)?;
    let harmed = (|| {
        if mounts::at(&mount_point.dir)?.is_empty() {
            return Err(fault("the volume is mounted still", "it is not"));
        }
        bench.unbind_from_pod(pod)?;
        bench.unmount_and_detach(&mount_point)?;
        let mount_point = bench.attach_and_mount(&made.volume, "sanity-later", "rw")?;
        if writes {
            files::expect(bench, &mount_point, "kept", TEXT)?;
        }
        bench.unmount_and_detach(&mount_point)
    })();
    let expected = "a Failure while it is mounted, and every file is there afterwards";
    match harmed {
        Err(Stop::Fault(harm)) => {
            let said = if call.succeeded() {
                "Success"
            } else {
                "no Success"
            };
            let found = format!("{said}; then, of \"{}\": {}", harm.expected, harm.found);
            Err(wrong(&call, expected, found))
        }
        Err(other) => Err(other),
        Ok(()) if call.failed() => bench.delete(&made.volume),
        Ok(()) if call.not_supported() => bench.expect_deleted(&made.volume.name, &call),
        Ok(()) => Err(wrong(&call, expected, "Success, and the files are there")),
    }
}
