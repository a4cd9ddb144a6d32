//! Checks of `provision`, as a provisioner calls it for a claim.

use crate::{
    bench::Bench,
    callout::{
        argument::{self, Options},
        call::Outcome,
    },
    check::{Check, Level, Need},
    checks::{concurrency::together, hostile_provision, kill::Cuts},
    system::command::SignalTo,
    verdict::{Verdict, fault, readable, wrong},
};

/// Requirements of the group, and the source of its rules.
pub const NEEDS: &[Need] = &[Need::Root, Need::Fresh];
const SOURCE: &str =
    "flexvol's controller; external-storage's flex provisioner (flex/pkg/volume/provision.go)";

pub const CHECKS: &[Check] = &[
    Check {
        name: "prv.repeat-same-volume",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "provision of the same name and size again answers the same handle, options and size",
        why: "a provisioner repeats what was not answered: each repetition is a disk that nobody will ever remove",
        broke: "drivers that make a volume at every call, with a random name",
        mend: "bind the name to the volume before it is made, and look there first",
        source: SOURCE,
        run: repeated,
    },
    Check {
        name: "prv.names-apart",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "two names that differ only at their end lead to two volumes",
        why: "two claims else share one disk, and each reads and overwrites the other's data",
        broke: "drivers that cut names to the length that their backend takes",
        mend: "find volumes by the whole name, or by a hash of it",
        source: SOURCE,
        run: apart,
    },
    Check {
        name: "prv.size-reached",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "the volume has at least the size that was asked for, and the size that the reply tells",
        why: "a claim is bound to a volume that is smaller than it says, and its pod finds out when the disk is full",
        broke: "drivers that round down to MiB or GiB, and that answer what they were asked",
        mend: "round up, and answer the size that was measured",
        source: SOURCE,
        run: size,
    },
    Check {
        name: "prv.other-request-refused",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "provision of a name that exists, with another size or file system, is refused or answers that volume, which keeps its size",
        why: "a claim of that name was deleted and made again: it gets a volume that it did not ask for, or the old one is lost",
        broke: "drivers that find the volume, answer the size they were asked, and change nothing, and those that make it anew",
        mend: "compare what is there with the request; Failure if it is less",
        source: SOURCE,
        run: other_request,
    },
    Check {
        name: "prv.options-mount",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "a volume mounts with the options that provision answered",
        why: "they are all that kubelet is ever told of the volume",
        broke: "drivers whose mount needs what only provision was told",
        mend: "answer all that mount needs as options",
        source: SOURCE,
        run: |bench| {
            let made = bench.provision_new()?;
            let mount_point = bench.attach_and_mount(&made.volume, "sanity-pod", "rw")?;
            bench.unmount_and_detach(&mount_point)
        },
    },
    Check {
        name: "prv.options-valid",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "the options of the reply are strings, and none is a key of Kubernetes",
        why: "the API server refuses such a persistent volume: the claim waits for ever, and the disk stays",
        broke: "drivers that answer fsType, or numbers, as options",
        mend: "answer the file system as fsType, and everything else as strings under keys of one's own",
        source: "validateFlexVolumeSource in pkg/apis/core/validation, 1.6 to 1.37",
        run: valid_options,
    },
    Check {
        name: "prv.no-room-refused",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "more than any machine has (4 EiB) is refused, and leaves the name free for a usual size",
        why: "a volume that is not there is promised, or the claim is stuck after its size was corrected",
        broke: "drivers that make what is left and say Success, and those that keep the name of what failed",
        mend: "compare with what is free first; undo what a failed call began",
        source: SOURCE,
        run: no_room,
    },
    Check {
        name: "prv.bad-size-refused",
        level: Level::Should,
        needs: NEEDS,
        alone: false,
        what: "a size that is zero, negative, no number or beyond 63 bits is a Failure",
        why: "a volume of another size is made, and nobody is told",
        broke: "scripts whose arithmetic takes what is no number for zero",
        mend: "parse the size as a whole, and say what is wrong with it",
        source: SOURCE,
        run: bad_sizes,
    },
    Check {
        name: "prv.unknown-parameter",
        level: Level::Should,
        needs: NEEDS,
        alone: false,
        what: "a parameter that the driver does not know is refused by its name",
        why: "a typing error in a storage class else makes volumes on the wrong disks for years",
        broke: "nearly all",
        mend: "list the parameters there are, and say which one is not among them",
        source: "parameters of a StorageClass are free text to the API server",
        run: unknown_parameter,
    },
    Check {
        name: "prv.hostile-values",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "no name and no parameter of provision leads out of the driver's own place: nothing is made there, and nothing of the node is mounted",
        why: "a pod gets the node's own directories as its volume",
        broke: "drivers that join the name to the directory of their volumes",
        mend: "check names against an alphabet as a whole, before anything is made",
        source: "provision's name and parameters come from whoever may call it",
        run: hostile_provision::provision,
    },
    Check {
        name: "prv.interrupted-resumes",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "a provision or delete that is killed at any moment is completed by its repetition",
        why: "agents are updated and nodes reboot: half a volume is else in the way of its own name for ever",
        broke: "drivers that write the name down first and then take the volume for made",
        mend: "make each step repeatable, and look at what is there instead of at what should be",
        source: SOURCE,
        run: interrupted,
    },
    Check {
        name: "prv.parallel-same-name",
        level: Level::Must,
        needs: NEEDS,
        alone: false,
        what: "provisions of one name at once make one volume",
        why: "an old provisioner and its successor call at the same time; one of two disks is lost",
        broke: "drivers that look for the name, and make the volume later",
        mend: "bind the name in one step that fails if it exists, such as link(2)",
        source: SOURCE,
        run: parallel,
    },
];

fn repeated(bench: &Bench) -> Verdict {
    let first = bench.provision_new()?;
    let again = bench.provision(&first.volume.name, bench.run.bytes)?;
    if !again.is(&first) || again.capacity != first.capacity {
        let expected = "handle, options and capacity of the first call";
        return Err(wrong(&again.call, expected, "others"));
    }
    Ok(())
}

fn apart(bench: &Bench) -> Verdict {
    let (one, other) = (bench.provision_new()?, bench.provision_new()?);
    if one.is(&other) {
        let found = format!("that of {}", one.volume.name);
        return Err(wrong(&other.call, "a volume of its own", found));
    }
    Ok(())
}

fn size(bench: &Bench) -> Verdict {
    // No backend has this unit.
    let asked = bench.run.bytes + 1;
    let made = bench.provision(&bench.provision_name(), asked)?;
    let told = made.capacity.unwrap_or_else(|| {
        bench.note("the reply tells no capacity");
        asked
    });
    if told < asked {
        let expected = format!("capacity, of at least {asked} bytes");
        return Err(wrong(&made.call, expected, told.to_string()));
    }
    let mount_point = bench.attach_and_mount(&made.volume, "sanity-pod", "rw")?;
    bench.expect_size(&made.call, &mount_point, told)?;
    bench.unmount_and_detach(&mount_point)
}

fn other_request(bench: &Bench) -> Verdict {
    let bytes = bench.run.bytes;
    let first = bench.provision_new()?;
    let name = &first.volume.name;
    let is_ext4 = matches!(first.call.outcome(),
        Outcome::Success(reply) if reply.fs_type.as_ref().unwrap_or(&bench.run.config.fs_type) == "ext4");
    let other = if is_ext4 { "xfs" } else { "ext4" };
    let filesystem: Options = [(argument::FS_TYPE.to_owned(), other.to_owned())].into();
    let mut last = (first.call.clone(), first.capacity.unwrap_or(bytes));
    for (size, more) in [
        (bytes * 2, Options::new()),
        (bytes / 2, Options::new()),
        (bytes, filesystem),
    ] {
        let call = bench.call_provision(name, size, &more)?;
        readable(&call)?;
        let Some(made) = bench.answered(name, &call) else {
            continue;
        };
        if !made.is(&first) {
            let expected = "a Failure, or the volume of the first call";
            return Err(wrong(&call, expected, "another volume"));
        }
        let told = made.capacity.unwrap_or(size);
        if told < size {
            let expected = format!("a Failure, or a capacity of at least {size} bytes");
            return Err(wrong(&call, expected, told.to_string()));
        }
        last = (call, told.max(last.1));
    }
    let again = bench.provision(name, bytes)?;
    if !again.is(&first) {
        let expected = "the volume of the first call, as before";
        return Err(wrong(&again.call, expected, "another one"));
    }
    let mount_point = bench.attach_and_mount(&again.volume, "sanity-pod", "rw")?;
    let (call, told) = last;
    bench.expect_size(&call, &mount_point, told)?;
    bench.unmount_and_detach(&mount_point)
}

fn valid_options(bench: &Bench) -> Verdict {
    let made = bench.provision_new()?;
    let Outcome::Success(reply) = made.call.outcome() else {
        return Ok(());
    };
    let options = match reply.options {
        Ok(options) => options,
        Err(why) => return Err(wrong(&made.call, "options, all of them strings", why)),
    };
    match options.keys().find(|key| is_reserved(key)) {
        Some(key) => {
            let expected = "options that the API server takes";
            let found = format!("option {key}, which only Kubernetes may set");
            Err(wrong(&made.call, expected, found))
        }
        None => Ok(()),
    }
}

/// As the API server decides it.
fn is_reserved(key: &str) -> bool {
    let domain = key.split_once('/').map_or(key, |(domain, _)| domain);
    let domain = format!(".{}", domain.to_lowercase());
    domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io")
}

fn no_room(bench: &Bench) -> Verdict {
    // So that a driver without provision is told from one that refuses.
    let control = bench.provision_new()?;
    bench.delete(&control.volume)?;
    let name = bench.provision_name();
    let call = bench.call_provision(&name, 1 << 62, &Options::new())?;
    readable(&call)?;
    if call.succeeded() {
        let expected = "a Failure: no machine has 4 EiB";
        return Err(wrong(&call, expected, "Success"));
    }
    let usual = bench.call_provision(&name, bench.run.bytes, &Options::new())?;
    let Some(made) = bench.answered(&name, &usual) else {
        let expected = "a volume of a usual size, after the large one was refused";
        return Err(wrong(&usual, expected, "none"));
    };
    let mount_point = bench.attach_and_mount(&made.volume, "sanity-pod", "rw")?;
    bench.expect_size(&usual, &mount_point, bench.run.bytes)?;
    bench.unmount_and_detach(&mount_point)
}

fn bad_sizes(bench: &Bench) -> Verdict {
    bench.provision_new()?;
    for text in ["0", "-1", "1Gi", "", "9223372036854775808"] {
        let name = bench.provision_name();
        let sizes = ["requestBytes", "requestMiB", "requestGiB"];
        let sizes = sizes.map(|key| (key.to_owned(), text.to_owned()));
        let call = bench.call_provision(&name, bench.run.bytes, &sizes.into())?;
        if !call.failed() {
            let expected = format!("a Failure: {text:?} is no size");
            return Err(wrong(&call, expected, "something else"));
        }
        bench.gone(&name)?;
    }
    Ok(())
}

fn unknown_parameter(bench: &Bench) -> Verdict {
    const KEY: &str = "sanityUnknownParameter";
    bench.provision_new()?;
    let name = bench.provision_name();
    let more = [(KEY.to_owned(), "x".to_owned())].into();
    let call = bench.call_provision(&name, bench.run.bytes, &more)?;
    match call.outcome() {
        Outcome::Failure(message) if message.contains(KEY) => bench.gone(&name),
        _ => {
            let expected = "a Failure that names the parameter";
            Err(wrong(&call, expected, "something else"))
        }
    }
}

/// How many calls of each kind are killed.
const POINTS: u32 = 5;

fn interrupted(bench: &Bench) -> Verdict {
    let first = bench.provision_new()?;
    let deleted = bench.call_delete(&first.volume)?;
    bench.expect_deleted(&first.volume.name, &deleted)?;
    let mut provisions = Cuts::new("a provision", first.call.took);
    let mut deletes = Cuts::new("a delete", deleted.took);
    for step in 1..=POINTS {
        let name = bench.provision_name();
        bench.expect_provisioned(&name, bench.run.bytes)?;
        let argv = bench.provision_arguments(&name, bench.run.bytes, &Options::new());
        provisions.cut(bench, &argv, (step, POINTS + 1), SignalTo::Group)?;
        let made = bench.provision(&name, bench.run.bytes)?;
        if !step.is_multiple_of(2) {
            let mount_point = bench.attach_and_mount(&made.volume, "sanity-pod", "rw")?;
            bench.expect_size(&made.call, &mount_point, bench.run.bytes)?;
            bench.unmount_and_detach(&mount_point)?;
        }
        let argv = ["delete".to_owned(), made.volume.json("rw")];
        deletes.cut(bench, &argv, (step, POINTS + 1), SignalTo::Group)?;
        bench.delete(&made.volume)?;
    }
    let hits = [provisions, deletes].map(|cuts| cuts.require_hits(bench));
    let [provisions, deletes] = hits;
    provisions.or(deletes)
}

fn parallel(bench: &Bench) -> Verdict {
    let control = bench.provision_new()?;
    bench.delete(&control.volume)?;
    let name = bench.provision_name();
    bench.expect_provisioned(&name, bench.run.bytes)?;
    let argv = bench.provision_arguments(&name, bench.run.bytes, &Options::new());
    let calls = together(bench, &vec![argv.to_vec(); 4])?;
    let made: Vec<_> = calls
        .iter()
        .filter_map(|call| bench.answered(&name, call))
        .collect();
    let Some(first) = made.first() else {
        return Err(fault("one of four calls at once succeeds", "none does"));
    };
    let last = bench.provision(&name, bench.run.bytes)?;
    for one in made.iter().chain([&last]) {
        if !one.is(first) {
            let expected = "the same volume in every answer";
            return Err(wrong(&one.call, expected, "another one"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_reserved;

    #[test]
    fn the_keys_of_kubernetes_are_those_that_the_api_server_refuses() {
        for key in ["kubernetes.io/fsType", "a.K8s.io/x", "kubernetes.io"] {
            assert!(is_reserved(key), "{key}");
        }
        for key in ["handle", "notkubernetes.io/x", "example.com/kubernetes.io"] {
            assert!(!is_reserved(key), "{key}");
        }
    }
}
