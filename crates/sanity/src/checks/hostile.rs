//! Checks of malicious or merely unusual names and values.

use crate::{
    bench::{
        Bench,
        sandbox::{Decoy, Forbidden},
        victim::Victim,
    },
    callout::{
        argument::{self, Options},
        call::Outcome,
    },
    check::{Check, Level, Need},
    system::mounts,
    verdict::{Verdict, fault, readable, wrong},
    volume::Stage,
};

pub const CHECKS: &[Check] = &[
    Check {
        name: "cli.unknown-option",
        level: Level::Should,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "an option that the driver does not know is refused by its name",
        why: "a typing error in a volume is else found when the disk is lost",
        broke: "nearly all",
        mend: "list the options there are, and say which one is not among them",
        source: "options of a FlexVolume source are free text to the API server",
        run: unknown_option,
    },
    Check {
        name: "cli.reserved-key-in-options",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "unusual values of Kubernetes' own keys are refused or harmless, and answered in JSON",
        why: "an old API server, or another caller, lets options through that stand in for them",
        broke: "drivers that hand fsType to mkfs as it is",
        mend: "check the values of kubernetes.io keys as strictly as one's own",
        source: "validateFlexVolumeSource in pkg/apis/core/validation; user options win over built-in ones (driver-call.go)",
        run: reserved,
    },
    Check {
        name: "cli.shell-metachars",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "no value reaches a shell, or becomes an option of a program",
        why: "whoever may write a pod then runs commands as root on the node",
        broke: "drivers with sh -c \"mount ... %s\", eval, unquoted $*, and an option that names the program to run",
        mend: "start programs with argument lists, with -- before what comes from outside",
        source: "options and inline volume names come from authors of pods",
        run: shell,
    },
    Check {
        name: "cli.path-traversal",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "no name and no option leads out of the driver's own place",
        why: "a pod then mounts the node's own directories",
        broke: "a driver that looked at the first character alone and mounted /etc/ssl, one whose volume group led into /dev/disk",
        mend: "check names against an alphabet as a whole, and open paths without following links",
        source: "options and inline volume names come from authors of pods",
        run: traversal,
    },
    Check {
        name: "cli.spaces-in-paths",
        level: Level::Must,
        needs: &[Need::Root, Need::Volume],
        alone: false,
        what: "a directory with a space and other unusual letters is mounted and unmounted",
        why: "kubelet's root directory may be anywhere, and mount tables write such letters in octal",
        broke: "scripts with an unquoted $*, and readers of /proc/mounts that take it literally",
        mend: "quote, and decode \\040 and its like",
        source: "--root-dir of kubelet; mangle() in the kernel's fs/proc_namespace.c",
        run: spaces,
    },
];

fn unknown_option(bench: &Bench) -> Verdict {
    bench.needs_mounting()?;
    let volume = bench.volume()?;
    let mount_point = bench.prepare_final_mount(&volume, "sanity-pod", "rw")?;
    let mut typo = mount_point.clone();
    typo.volume
        .options
        .insert("sanityUnknownOption".to_owned(), "x".to_owned());
    let call = bench.mount(&typo, "rw")?;
    match call.outcome() {
        Outcome::Failure(message) if message.contains("sanityUnknownOption") => Ok(()),
        Outcome::Failure(_) => Err(wrong(
            &call,
            "a Failure that names the option",
            "one that does not",
        )),
        _ => Err(wrong(
            &call,
            "a Failure that names the option",
            "something else",
        )),
    }
}

fn with(key: &str, value: &str) -> Options {
    [(key.to_owned(), value.to_owned())].into()
}

fn reserved(bench: &Bench) -> Verdict {
    let long = "x".repeat(4096);
    let values = [
        (argument::FS_TYPE, "sanity-no-such-fs"),
        (argument::FS_TYPE, "../../bin/sh"),
        (argument::FS_TYPE, "--help"),
        (argument::READ_WRITE, "maybe"),
        (argument::READ_WRITE, ""),
        (argument::NAME, ""),
        (argument::NAMESPACE, ""),
        (argument::FS_GROUP, "-1"),
        (argument::FS_GROUP, "99999999999999999999"),
        ("kubernetes.io/secret/key", "no base64!"),
        (argument::NAME, &long),
        (argument::FS_TYPE, &long),
    ];
    let mut victim = Victim::new(bench);
    let targets = values.map(|(key, value)| with(key, value));
    victim.call_with(&targets, &mut |hostile| readable(&hostile.call))
}

/// Returns the members that get each value: every key of the driver and of the pod alone, with the other
/// members as usual, and all the keys together in which drivers have had such a fault.
fn targets(bench: &Bench, value: &str) -> Vec<Options> {
    let config = &bench.run.config;
    let own = config
        .volume
        .parameters
        .keys()
        .chain(&bench.run.option_keys);
    let pods = [
        argument::NAME,
        argument::FS_TYPE,
        argument::NAMESPACE,
        "kubernetes.io/pod.name",
    ];
    let mut keys: Vec<_> = own.map(String::as_str).chain(pods).collect();
    keys.sort_unstable();
    keys.dedup();
    let guessed = [
        "mountOptions",
        "options",
        "server",
        "path",
        "share",
        "volume",
        "device",
    ];
    let guessed = guessed.map(|key| (key.to_owned(), value.to_owned()));
    let mut targets = vec![guessed.into()];
    targets.extend(keys.into_iter().map(|key| with(key, value)));
    targets
}

/// A label that a file system has only if a value was taken as an option of mkfs.
const LABEL: &str = "sanity-opt";

fn shell(bench: &Bench) -> Verdict {
    let fs_type = match bench.run.config.fs_type.as_str() {
        "" => "ext4",
        asked => asked,
    };
    let canary = bench.dir.join("canary");
    let touch = format!("touch {}", canary.display());
    let values = [
        // Has no space: a tab is written as an escape in the JSON.
        format!("{fs_type}\t-L\t{LABEL}"),
        format!("{fs_type} -L {LABEL}"),
        format!("x; {touch}"),
        format!("x;{touch};"),
        format!("x;{};", touch.replace(' ', "\t")),
        format!("$({touch})"),
        format!("`{touch}`"),
        format!("x' ; {touch} ; '"),
        format!("x\" ; {touch} ; \""),
        format!("x\n{touch}\n"),
        format!("x | {touch} &"),
        format!("a[$({touch})]"),
        "--help".to_owned(),
        "-V".to_owned(),
    ];
    let mut victim = Victim::new(bench);
    for value in &values {
        victim.call_with(&targets(bench, value), &mut |hostile| {
            let call = &hostile.call;
            if canary.exists() {
                let found = "one was run as a command";
                return Err(wrong(call, "a value is a value", found));
            }
            if value.starts_with('-') && call.succeeded() && hostile.mounted_nothing()? {
                let found = "Success and no mount: it was an option of some program";
                return Err(wrong(call, "a value is a value", found));
            }
            if value.contains(LABEL) && hostile.is_labelled(LABEL)? {
                let found = "a part of it was an option of mkfs";
                return Err(wrong(call, "a value is a value", found));
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn traversal(bench: &Bench) -> Verdict {
    let decoy = Decoy::new(bench)?;
    let path = decoy.directory.display();
    let up = "../".repeat(12);
    let mut values = vec![
        "..".to_owned(),
        ".".to_owned(),
        "/etc".to_owned(),
        "a\u{1}b".to_owned(),
        format!("{path}"),
        format!("..{path}"),
        format!("{up}{path}"),
        format!("a/{up}etc"),
        format!("a/{up}{path}"),
        "-oremount".to_owned(),
    ];
    values.push("a/".repeat(2048));
    let forbidden = Forbidden::new(&decoy);
    let mut victim = Victim::new(bench);
    let mut odd = None;
    for value in &values {
        victim.call_with(&targets(bench, value), &mut |hostile| {
            let call = &hostile.call;
            // What was mounted counts more than the words.
            forbidden.expect_elsewhere(call, &hostile.dir)?;
            decoy.expect_untouched(call)?;
            odd = odd.take().or_else(|| readable(call).err());
            Ok(())
        })?;
    }
    odd.map_or(Ok(()), Err)
}

fn spaces(bench: &Bench) -> Verdict {
    let volume = bench.volume()?;
    let mut mount_point = bench.prepare_final_mount(&volume, "sanity-pod", "rw")?;
    let name = "a b\\c#d'e";
    mount_point.dir = bench.dir.join(name).join(&volume.name);
    if mount_point.stage == Stage::Node {
        bench.note("the node's directory");
    }
    let call = bench.mount(&mount_point, "rw")?;
    bench.expect_mounted(&mount_point, &call)?;
    let again = bench.mount(&mount_point, "rw")?;
    bench.expect_mounted_once(&mount_point, &again)?;
    bench.unmount_and_detach(&mount_point)?;
    let left: Vec<_> = mounts::below(&bench.dir.join(name))?;
    if left.is_empty() {
        Ok(())
    } else {
        Err(fault("nothing is mounted there", "something is"))
    }
}
