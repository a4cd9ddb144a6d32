//! Checks of a driver's output in all callouts.

use crate::{
    bench::{Bench, tour},
    callout::{
        argument,
        call::{Call, Exit},
        reply::{self, Status},
    },
    check::{Check, Level},
    system::command::LINGER,
    verdict::{Stop, Verdict, not_applicable, wrong},
};

pub const CHECKS: &[Check] = &[
    Check {
        name: "out.one-json",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "standard output and standard error together are exactly one JSON object",
        why: "the caller reads both as one text: a warning, a log line or a second object turns a success into a failure",
        broke: "usage texts, jq's errors, tracebacks, Go panics, warnings of lvm that a driver let through",
        mend: "capture what children write; write the reply once, last, and nothing else",
        source: "CombinedOutput in DriverCall.Run, pkg/volume/flexvolume/driver-call.go, 1.6 to 1.37",
        run: |bench| {
            judge(bench, |call| {
                let error = reply::object(&call.output()).err()?;
                Some(("one JSON object".into(), error))
            })
        },
    },
    Check {
        name: "out.stderr-empty",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "nothing is written to standard error",
        why: "it goes into the same text as the reply, which nobody can read then",
        broke: "drivers that log to standard error, and every shell script with a failing command",
        mend: "point standard error to a log or to /dev/null before anything else",
        source: "CombinedOutput in DriverCall.Run, pkg/volume/flexvolume/driver-call.go, 1.6 to 1.37",
        run: |bench| {
            judge(bench, |call| {
                let text = String::from_utf8_lossy(&call.stderr);
                (!call.stderr.is_empty())
                    .then(|| ("nothing on standard error".into(), first(&text)))
            })
        },
    },
    Check {
        name: "out.utf8",
        level: Level::Should,
        needs: &[],
        alone: false,
        what: "the reply is UTF-8 without a byte order mark",
        why: "Go replaces what is no UTF-8, and refuses the mark",
        broke: "drivers that pass on messages of programs in the node's own encoding",
        mend: "replace what is no UTF-8 before it gets into the reply",
        source: "Go's encoding/json, as handleCmdResponse in driver-call.go uses it",
        run: |bench| {
            judge(bench, |call| {
                let output = call.output();
                if output.starts_with(b"\xef\xbb\xbf") {
                    return Some(("no byte order mark".into(), "one".into()));
                }
                let error = std::str::from_utf8(&output).err()?;
                Some(("UTF-8".into(), error.to_string()))
            })
        },
    },
    Check {
        name: "out.newline",
        level: Level::Should,
        needs: &[],
        alone: false,
        what: "the reply is one line, and ends with a line feed",
        why: "people read it in a terminal, and programs line by line: the prompt or the next reply is in the same line else",
        broke: "scripts with echo -n, and drivers that print JSON in many lines",
        mend: "print the reply and one line feed",
        source: "the replies of Kubernetes' own examples; handleCmdResponse in driver-call.go takes either",
        run: |bench| {
            judge(bench, |call| {
                reply::object(&call.output()).ok()?;
                let text = String::from_utf8_lossy(&call.stdout).into_owned();
                let lines = text.matches('\n').count();
                let right = lines == 1 && text.ends_with('\n');
                let found = format!("{lines} line feeds: {:?}", first(&text));
                (!right).then(|| ("one line with a line feed at its end".into(), found))
            })
        },
    },
    Check {
        name: "out.status-word",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "the status is exactly Success, Failure or Not supported",
        why: "success in small letters is a failure to kubelet, and so is Not Supported",
        broke: "drivers that write Failed, success or Not Supported",
        mend: "take the words from one place, as constants",
        source: "StatusSuccess and StatusNotSupported in driver-call.go, 1.2 to 1.37",
        run: |bench| {
            judge(bench, |call| match call.decoded().ok()?.status {
                Status::Failure(word) if word != "Failure" => {
                    let expected = "Success, Failure or Not supported";
                    Some((expected.into(), format!("the status {word:?}")))
                }
                _ => None,
            })
        },
    },
    Check {
        name: "out.types",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "attached is true or false, volumeNewSize a whole number, device and message are strings",
        why: "one member of the wrong type makes the whole reply unreadable, also a Success",
        broke: "drivers that quote everything: \"attached\":\"true\"",
        mend: "write JSON with a library, from typed values",
        source: "DriverStatus in driver-call.go, decoded by Go's encoding/json",
        run: |bench| {
            judge(bench, |call| {
                reply::object(&call.output()).ok()?;
                let error = call.decoded().err()?;
                Some(("members of the right types".into(), error))
            })
        },
    },
    Check {
        name: "out.exit0-on-success",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "Success comes with exit code 0",
        why: "Success with another code counts as an error since 1.6, though everything was done",
        broke: "scripts whose last command fails after the reply",
        mend: "exit 0 after every reply",
        source: "DriverCall.Run in driver-call.go, 1.6 to 1.37",
        run: |bench| {
            judge(bench, |call| {
                let status = call.decoded().ok()?.status;
                let bad = status == Status::Success && call.exit != Exit::Code(0);
                bad.then(|| ("exit code 0".into(), exit(call)))
            })
        },
    },
    Check {
        name: "out.exit-on-failure",
        level: Level::Warn,
        needs: &[],
        alone: false,
        what: "a failing mount with secrets ends with exit code 0",
        why: "with another code kubelet logs all arguments, and those of mount contain the secrets",
        broke: "nearly all of them",
        mend: "exit 0 after every reply, Failure too",
        source: "klog.Warningf in DriverCall.Run, driver-call.go, 1.6 to 1.37",
        run: |bench| {
            bench.needs_callout("mount")?;
            let secret = argument::base64(b"sanity");
            let json = format!(
                r#"{{"kubernetes.io/pvOrVolumeName":"sanity-{}-nobody","kubernetes.io/secret/key":"{secret}"}}"#,
                bench.run.tag
            );
            let nowhere = bench.dir.join("nowhere").to_string_lossy().into_owned();
            let call = bench.call(&["mount", &nowhere, &json])?;
            if call.failed() && call.exit != Exit::Code(0) {
                return Err(wrong(&call, "exit code 0", exit(&call)));
            }
            Ok(())
        },
    },
    Check {
        name: "out.failure-has-message",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "a Failure has a message",
        why: "it is all that people see: it goes into the events of the pod",
        broke: "scripts that end with err '{\"status\":\"Failure\"}'",
        mend: "say what was asked, what was found and what to do",
        source: "isCmdNotSupportedErr and the error of DriverCall.Run, driver-call.go, 1.6 to 1.37",
        run: |bench| {
            judge(bench, |call| {
                let reply = call.decoded().ok()?;
                let silent =
                    matches!(reply.status, Status::Failure(_)) && reply.message.trim().is_empty();
                silent.then(|| ("a message".into(), "none".into()))
            })
        },
    },
    Check {
        name: "out.message-one-line-256",
        level: Level::Should,
        needs: &[],
        alone: false,
        what: "a message is one line of at most 256 characters",
        why: "events are cut at 1,024 bytes and shown in one line; what matters is lost in dumps of options and argv",
        broke: "drivers that answer with all their arguments, or with what mount(8) printed",
        mend: "keep details for the log, under an id that the message names",
        source: "pkg/kubelet/volumemanager, which puts the error into an event of the pod",
        run: |bench| {
            judge(bench, |call| {
                let message = call.decoded().ok()?.message;
                let length = message.chars().count();
                if length > 256 {
                    return Some(("at most 256 characters".into(), format!("{length}")));
                }
                let control = message.chars().any(char::is_control);
                control.then(|| ("one line".into(), format!("{message:?}")))
            })
        },
    },
    Check {
        name: "out.child-closes-output",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "when the driver ends, nobody holds its output open",
        why: "kubelet waits for the end of the output, not of the driver: a daemon that inherited it holds the pod for ever",
        broke: "drivers that start a FUSE daemon or a background job without redirecting it",
        mend: "start what stays with all three descriptors on /dev/null",
        source: "os/exec waits for the copying of the output, under DriverCall.Run",
        run: |bench| {
            judge(bench, |call| {
                (call.lingered > LINGER).then(|| {
                    let found = format!("{:.1} s more", call.lingered.as_secs_f64());
                    ("the output ends with the driver".into(), found)
                })
            })
        },
    },
    Check {
        name: "out.not-supported-consistent",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "a callout that is Not supported for one volume is so for every volume",
        why: "it is remembered for the whole driver: one volume switches the callout off for all, until kubelet restarts",
        broke: "drivers with several backends, of which one cannot do something",
        mend: "say Not supported only of what the driver never does; otherwise Failure",
        source: "plugin.unsupported in pkg/volume/flexvolume/plugin.go, 1.6 to 1.37",
        run: consistent,
    },
];

/// Applies a rule to every call of the tour.
fn judge(bench: &Bench, rule: fn(&Call) -> Option<(String, String)>) -> Verdict {
    let tour = tour::of(bench)?;
    for call in &tour.calls {
        if let Some((expected, found)) = rule(call) {
            return Err(wrong(call, expected, found));
        }
    }
    match &tour.cut {
        Some(why) => Err(Stop::Skipped(why.clone())),
        None => Ok(()),
    }
}

fn consistent(bench: &Bench) -> Verdict {
    let calls = &tour::of(bench)?.calls;
    // A reply that cannot be parsed says nothing about the volume.
    let whole = |call: &&Call| {
        bench
            .run
            .arguments(call.callout(), &bench.run.missing_volume(), &bench.dir, "")
            .len()
            == call.argv.len()
    };
    for call in calls.iter().filter(whole) {
        let other = calls.iter().filter(whole).find(|other| {
            other.callout() == call.callout() && call.not_supported() != other.not_supported()
        });
        if let Some(other) = other {
            let (one, other) = if call.not_supported() {
                (call, other)
            } else {
                (other, call)
            };
            let found = format!("not so for {}", other.command(&bench.run.masks));
            return Err(wrong(one, "the same for every volume", found));
        }
    }
    if calls.iter().all(|call| !call.not_supported()) {
        return Err(not_applicable("nothing is Not supported"));
    }
    Ok(())
}

fn exit(call: &Call) -> String {
    match call.exit {
        Exit::Code(code) => format!("exit code {code}"),
        Exit::Signal(signal) => format!("signal {signal}"),
        Exit::Deadline => "no end before the deadline".to_owned(),
    }
}

fn first(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
