//! Checks of a driver's dependence on its environment, and of its effects on it.

use crate::{
    bench::{Bench, sandbox},
    callout::{
        CALLOUTS,
        call::{Call, CallOptions, Exit, Outcome},
        exec,
    },
    check::{Check, Level, Need},
    system::{self, command, mount_namespace},
    verdict::{Stop, Verdict, not_applicable, wrong},
    volume::Source,
};
use anyhow::Context;
use nix::{
    mount::MsFlags,
    sys::inotify::{AddWatchFlags, InitFlags, Inotify},
};
use std::path::Path;

pub const CHECKS: &[Check] = &[
    Check {
        name: "out.closed-stdin",
        level: Level::Should,
        needs: &[],
        alone: false,
        what: "without a standard input the answers are the same",
        why: "a file opened next becomes descriptor 0, and children read it",
        broke: "scripts that read",
        mend: "open /dev/null on what is closed",
        source: "other callers than kubelet, which gives /dev/null (os/exec)",
        run: |bench| {
            same_answers(
                bench,
                &CallOptions {
                    wrapper: ["/bin/sh", "-c", r#"exec "$0" "$@" <&-"#]
                        .map(Into::into)
                        .into(),
                    ..CallOptions::default()
                },
            )
        },
    },
    Check {
        name: "out.minimal-env",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "without PATH and HOME, and in another language where the machine has one, the answers are the same",
        why: "kubelet hands on its own environment, which under systemd and in containers is next to nothing",
        broke: "scripts without a PATH of their own, and parsers of translated messages",
        mend: "set PATH and LC_ALL=C for children, or name programs by path",
        source: "DriverCall.Run sets no environment, 1.6 to 1.37",
        run: |bench| {
            // Without `locale` no other language is assumed.
            let known = command::code("locale", &["-a".as_ref()]);
            let environment = foreign(&known.map_or_else(|_| String::new(), |(_, known)| known));
            if environment.is_empty() {
                bench.note(format!(
                    "{FOREIGN} is not on this machine: no other language was tried"
                ));
            }
            same_answers(
                bench,
                &CallOptions {
                    environment: Some(environment),
                    ..CallOptions::default()
                },
            )
        },
    },
    Check {
        name: "out.readonly-log-dir",
        level: Level::Must,
        needs: &[Need::Root],
        alone: false,
        what: "where no log can be written the answers are the same, and a volume is mounted and unmounted",
        why: "a full or read-only disk then stops every pod, and one line about it on standard error does too",
        broke: "a driver that ended because there was no syslog, scripts that log with >>",
        mend: "a log is best effort: ignore its errors",
        source: "the controller manager's container has no /dev/log and no writable /var/log",
        run: without_a_log,
    },
    Check {
        name: "out.plugin-dir-untouched",
        level: Level::Must,
        needs: &[],
        alone: true,
        what: "no callout changes a file in the driver's directory whose name has no dot in front",
        why: "each change makes kubelet probe the driver again, with init, and forget what is Not supported",
        broke: "a driver whose log lies beside it by default",
        mend: "keep logs, locks and state elsewhere",
        source: "pkg/volume/flexvolume/probe.go watches that directory, 1.8 to 1.37",
        run: untouched,
    },
];

/// A locale with letters that many programs convert incorrectly.
const FOREIGN: &str = "tr_TR.UTF-8";

/// Returns the variables of the foreign locale if `locale -a` lists it. Shells and Perl print a warning about
/// a locale that is not installed, before a script can prevent it.
fn foreign(known: &str) -> Vec<(String, String)> {
    let is_foreign = |name: &str| name.to_lowercase().replace("utf-8", "utf8") == "tr_tr.utf8";
    if !known.lines().any(is_foreign) {
        return Vec::new();
    }
    let variables = ["LANG", "LC_ALL"].into_iter();
    variables
        .map(|key| (key.to_owned(), FOREIGN.to_owned()))
        .collect()
}

/// The kind of outcome, in one word.
fn kind(call: &Call) -> &'static str {
    match call.outcome() {
        Outcome::Success(_) => "Success",
        Outcome::NotSupported => "Not supported",
        Outcome::Failure(_) => "Failure",
        Outcome::Broken(_) => "no reply",
    }
}

/// Makes callouts for a volume that does not exist, and returns their usual outcomes.
fn usual_answers(bench: &Bench) -> Result<Vec<(Vec<String>, &'static str)>, Stop> {
    let mut usual = Vec::new();
    for callout in [
        "init",
        "getvolumename",
        "mount",
        "unmount",
        "sanity-unknown",
    ] {
        let dir = bench.dir.join("nobody").join(callout);
        system::make_directory(&dir).context("make a directory")?;
        let argv = bench.run.missing_volume_arguments(callout, &dir);
        let answer = kind(&bench.call(&argv)?);
        usual.push((argv, answer));
    }
    Ok(usual)
}

/// Compares outcomes with those in the usual environment. With root, also runs a whole life cycle.
fn same_answers(bench: &Bench, options: &CallOptions) -> Verdict {
    // A program that is known to work tells whether the machine lacks what these options need.
    let none = exec::run(Path::new("/bin/true"), &[], options, bench.run.deadline)?;
    if none.exit != Exit::Code(0) {
        let said = String::from_utf8_lossy(&none.stderr).trim().to_owned();
        return Err(Stop::Skipped(format!(
            "a machine where that can be done: {said}"
        )));
    }
    let usual = usual_answers(bench)?;
    as_usual(bench, &usual, options)
}

fn as_usual(
    bench: &Bench,
    usual: &[(Vec<String>, &'static str)],
    options: &CallOptions,
) -> Verdict {
    for (argv, usual) in usual {
        let call = bench.call_with_options(argv, options)?;
        if kind(&call) != *usual {
            return Err(wrong(&call, format!("{usual}, as usual"), kind(&call)));
        }
    }
    if !system::is_root() || bench.run.source == Source::None {
        return Ok(());
    }
    let volume = bench.volume()?;
    bench.set_call_options(options.clone());
    let mount_point = bench.attach_and_mount(&volume, "sanity-pod", "rw")?;
    bench.unmount_and_detach(&mount_point)
}

/// Where programs write logs by default.
const LOGS: &str = "/var/log";

/// Runs the comparison in a mount namespace in which the log directory is not writable.
fn without_a_log(bench: &Bench) -> Verdict {
    if !Path::new(LOGS).is_dir() {
        return Err(Stop::Skipped(format!("a machine with {LOGS}")));
    }
    let usual = usual_answers(bench)?;
    let options = CallOptions {
        shown_prefix: &[
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "/bin/sh",
            "-c",
            r#"mount -t tmpfs -o ro none /var/log && exec "$0" "$@""#,
        ],
        ..CallOptions::default()
    };
    let read_only = || mount_namespace::mount_memory(Path::new(LOGS), MsFlags::MS_RDONLY);
    sandbox::with_changed_mounts(bench, read_only, || as_usual(bench, &usual, &options))
}

fn untouched(bench: &Bench) -> Verdict {
    let directory = bench.run.executable.parent().unwrap_or(Path::new("/"));
    if directory
        .file_name()
        .is_none_or(|name| !name.to_string_lossy().contains('~'))
    {
        let why = "the driver is not installed in a directory vendor~driver";
        return Err(not_applicable(why));
    }
    let watch =
        Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).context("watch files")?;
    let events = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_MODIFY
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVE
        | AddWatchFlags::IN_ATTRIB;
    watch
        .add_watch(directory, events)
        .context("watch the driver's directory")?;
    for callout in CALLOUTS {
        let dir = bench.dir.join("nobody").join(callout);
        system::make_directory(&dir).context("make a directory")?;
        let call = bench.call(&bench.run.missing_volume_arguments(callout, &dir))?;
        changed(&watch, &call)?;
    }
    if system::is_root() && bench.run.source != Source::None {
        let volume = bench.volume()?;
        let mount_point = bench.prepare_final_mount(&volume, "sanity-pod", "rw")?;
        let call = bench.mount(&mount_point, "rw")?;
        changed(&watch, &call)?;
        bench.expect_mounted(&mount_point, &call)?;
        bench.unmount_and_detach(&mount_point)?;
        changed(&watch, &call)?;
    }
    Ok(())
}

fn changed(watch: &Inotify, call: &Call) -> Verdict {
    // With an empty queue, the read fails with EAGAIN.
    for event in watch.read_events().unwrap_or_default() {
        let name = event
            .name
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if !name.is_empty() && !name.starts_with('.') {
            return Err(wrong(
                call,
                "no change in the driver's directory",
                format!("{name:?} changed"),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_language_that_the_machine_has_not_is_not_asked_for() {
        let is_asked = |known: &str| !super::foreign(known).is_empty();
        assert!(!is_asked(""));
        assert!(!is_asked("C\nC.utf8\nPOSIX\ntr_TR\ntr_TR.iso88599\n"));
        assert!(is_asked("C\ntr_TR.utf8\n") && is_asked("tr_TR.UTF-8\n"));
    }
}
