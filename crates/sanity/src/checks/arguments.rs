//! Checks of wrong, missing, additional and hostile arguments.

use crate::{
    bench::Bench,
    callout::{
        CALLOUTS,
        call::{Call, Outcome},
    },
    check::{Check, Level},
    verdict::{Verdict, readable, wrong},
};

pub const CHECKS: &[Check] = &[
    Check {
        name: "cli.no-args",
        level: Level::Should,
        needs: &[],
        alone: false,
        what: "without a callout the answer is a Failure in JSON, not a usage text",
        why: "whoever runs the driver by mistake reads a reply; a usage text is unparsable everywhere",
        broke: "twelve of the drivers that were tried print a usage text or nothing",
        mend: "answer every call in JSON, also a wrong one",
        source: "handleCmdResponse in driver-call.go, 1.6 to 1.37",
        run: |bench| {
            let call = bench.call::<&str>(&[])?;
            refused(&call)
        },
    },
    Check {
        name: "cli.unknown-callout",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "a callout that the driver does not know is Not supported",
        why: "Kubernetes adds callouts; a Failure is repeated for ever and pods do not start, as when expandfs came",
        broke: "drivers that answer Invalid command, or a usage text",
        mend: "make {\"status\":\"Not supported\"} the default of the switch over callouts",
        source: "expandfs since 1.13 (expander.go); the same for whatever comes next",
        run: |bench| {
            let call = bench.call(&["sanity-unknown", "{}"])?;
            if !call.not_supported() {
                return Err(wrong(&call, "Not supported", outcome(&call)));
            }
            Ok(())
        },
    },
    Check {
        name: "cli.missing-args",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "a callout with too few arguments is a Failure in JSON",
        why: "errors of making the arguments are ignored by the callers, so one can be missing",
        broke: "scripts with $1 under set -u, and programs that index their arguments",
        mend: "count the arguments first",
        source: "AppendSpec in driver-call.go, whose error every caller ignores",
        run: missing,
    },
    Check {
        name: "cli.extra-args",
        level: Level::Should,
        needs: &[],
        alone: false,
        what: "a callout with one argument more is refused or understood, in JSON",
        why: "a later release may add arguments, as 1.13 did; a crash tells nobody what happened",
        broke: "drivers that print a usage text",
        mend: "answer in JSON whatever the arguments are",
        source: "pkg/volume/flexvolume/*.go, whose arguments changed in 1.6 and 1.13",
        run: |bench| each(bench, |argv| argv.push("sanity-extra".to_owned()), readable),
    },
    Check {
        name: "cli.bad-json",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "JSON that cannot be read is a Failure in JSON",
        why: "the error of a parser on standard error makes the reply unreadable, and nobody learns why",
        broke: "scripts with jq, and a driver that answered twice",
        mend: "check that parsing worked before anything else",
        source: "handleCmdResponse in driver-call.go, 1.6 to 1.37",
        run: |bench| json(bench, &["{\"broken\"", "", "\u{1}", "{} {}"]),
    },
    Check {
        name: "cli.json-not-object",
        level: Level::Must,
        needs: &[],
        alone: false,
        what: "JSON that is no object of strings is a Failure",
        why: "options are always one flat object of strings; guessing what a list may mean mounts something else",
        broke: "scripts with jq, which print an error and go on with empty options",
        mend: "check the shape of the options",
        source: "OptionsForDriver in driver-call.go, a map of strings in every release",
        run: |bench| json(bench, &["[]", "null", "5", "\"text\"", "[{\"a\":\"b\"}]"]),
    },
];

fn outcome(call: &Call) -> String {
    match call.outcome() {
        Outcome::Success(_) => "Success".to_owned(),
        Outcome::NotSupported => "Not supported".to_owned(),
        Outcome::Failure(message) => format!("Failure: {message}"),
        Outcome::Broken(why) => format!("no reply: {why}"),
    }
}

fn refused(call: &Call) -> Verdict {
    match call.outcome() {
        Outcome::Failure(_) | Outcome::NotSupported => Ok(()),
        _ => Err(wrong(call, "a Failure", outcome(call))),
    }
}

/// Makes every callout for a volume that does not exist, with changed arguments.
fn each(bench: &Bench, change: impl Fn(&mut Vec<String>), judge: fn(&Call) -> Verdict) -> Verdict {
    for callout in CALLOUTS {
        let mut argv = bench
            .run
            .missing_volume_arguments(callout, &bench.dir.join("nowhere"));
        change(&mut argv);
        judge(&bench.call(&argv)?)?;
    }
    Ok(())
}

fn missing(bench: &Bench) -> Verdict {
    for callout in &CALLOUTS[1..] {
        let whole = bench
            .run
            .missing_volume_arguments(callout, &bench.dir.join("nowhere"));
        for length in 1..whole.len() {
            // A driver may accept a callout without its last argument if that is a name or a directory.
            refused(&bench.call(&whole[..length])?)?;
        }
    }
    Ok(())
}

/// Replaces the JSON argument of each callout that has one by each of the texts.
fn json(bench: &Bench, texts: &[&str]) -> Verdict {
    for callout in CALLOUTS {
        let whole = bench
            .run
            .missing_volume_arguments(callout, &bench.dir.join("nowhere"));
        let Some(place) = whole.iter().position(|word| word.starts_with('{')) else {
            continue;
        };
        for text in texts {
            let mut argv = whole.clone();
            (*text).clone_into(&mut argv[place]);
            refused(&bench.call(&argv)?)?;
        }
    }
    Ok(())
}
