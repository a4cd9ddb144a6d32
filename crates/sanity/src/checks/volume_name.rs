//! Checks of `getvolumename`, with which a driver may name a volume.

use crate::{
    bench::Bench,
    callout::call::Outcome,
    check::{Check, Level, Need},
    verdict::{Verdict, wrong},
    volume::Volume,
};

pub const CHECKS: &[Check] = &[
    Check {
        name: "gvn.stable-unique",
        level: Level::Must,
        needs: &[Need::Fresh],
        alone: false,
        what: "getvolumename has one answer for a volume, never empty, and another for another volume",
        why: "callers of 1.6 take it for the volume's identity: two volumes with one name are mixed up",
        broke: "a driver that answered an empty name for every volume it did not find",
        mend: "answer Not supported; nobody needs the name since 1.6.5",
        source: "GetVolumeName in pkg/volume/flexvolume/plugin.go, 1.6.0 to 1.6.4",
        run: stable,
    },
    Check {
        name: "gvn.never-failure",
        level: Level::Should,
        needs: &[],
        alone: false,
        what: "getvolumename succeeds or is Not supported, also for a volume the backend does not know",
        why: "it comes before every operation, and since 1.6.5 only its error counts: detaching stops too",
        broke: "drivers that ask the backend for the volume",
        mend: "answer Not supported",
        source: "GetVolumeName in pkg/volume/flexvolume/plugin.go, 1.6.5 to 1.37",
        run: |bench| {
            // For a volume that does not exist, Not supported is an acceptable answer.
            if !bench.run.inconclusive.contains("getvolumename") {
                bench.needs_callout("getvolumename")?;
            }
            let call = bench.call(&["getvolumename", &bench.run.missing_volume().json("rw")])?;
            if call.succeeded() || call.not_supported() {
                return Ok(());
            }
            Err(wrong(&call, "Success or Not supported", "a failure"))
        },
    },
];

fn stable(bench: &Bench) -> Verdict {
    bench.needs_callout("getvolumename")?;
    let name = |volume: &Volume| {
        let call = bench.call(&["getvolumename", &volume.json("rw")])?;
        let name = match call.outcome() {
            Outcome::Success(reply) => reply.volume_name.unwrap_or_default(),
            _ => return Err(wrong(&call, "Success", "something else")),
        };
        if name.is_empty() {
            return Err(wrong(&call, "a name", "an empty one"));
        }
        Ok((call, name))
    };
    let (one, other) = (bench.volume()?, bench.volume()?);
    let (_, first) = name(&one)?;
    let (call, again) = name(&one)?;
    if first != again {
        return Err(wrong(
            &call,
            format!("{first:?} again"),
            format!("{again:?}"),
        ));
    }
    let (call, second) = name(&other)?;
    if first == second {
        return Err(wrong(
            &call,
            format!("another name than {first:?}"),
            "the same",
        ));
    }
    Ok(())
}
