//! Checks of `capacity`, by which a controller chooses a node for a volume.

use crate::{
    bench::Bench,
    callout::{
        argument,
        call::{Call, Outcome},
        reply::Pool,
    },
    check::{Check, Level, Need},
    config::Kind,
    verdict::{Stop, Verdict, not_applicable, wrong},
};

const SOURCE: &str = "flexvol's controller, which chooses nodes by it";

pub const CHECKS: &[Check] = &[
    Check {
        name: "cap.plausible",
        level: Level::Must,
        needs: &[Need::Root],
        alone: false,
        what: "capacity is a whole number of bytes in 63 bits, and a pool has no more free than it has",
        why: "a node with an endless number gets every claim, and none of them a volume",
        broke: "drivers that answered 2^64-1 for unlimited, or a text with a unit",
        mend: "answer the largest volume that provision would make now, in bytes",
        source: SOURCE,
        run: plausible,
    },
    Check {
        name: "cap.goes-down",
        level: Level::Should,
        needs: &[Need::Root, Need::Fresh],
        // Other checks make volumes too.
        alone: true,
        what: "what capacity tells is enough for what provision makes, and less afterwards: capacity or free goes down, or promised goes up",
        why: "claims are sent to a node that is full",
        broke: "drivers that answer a constant, or count in MiB",
        mend: "measure, or add up the sizes of the volumes there are",
        source: SOURCE,
        run: goes_down,
    },
];

/// The answer to `capacity` with the parameters of the configuration.
struct Told {
    call: Call,
    bytes: u64,
    pool: Pool,
}

fn told(bench: &Bench) -> Result<Told, Stop> {
    let parameters = argument::object(&bench.run.config.volume.parameters);
    let call = bench.call(&["capacity".to_owned(), parameters])?;
    bench.needs_support(&call)?;
    let Outcome::Success(reply) = call.outcome() else {
        return Err(wrong(&call, "capacity succeeds", "it did not"));
    };
    match reply.capacity.filter(|bytes| i64::try_from(*bytes).is_ok()) {
        Some(bytes) => Ok(Told {
            call,
            bytes,
            pool: reply.pool,
        }),
        None => {
            let expected = "capacity, a whole number of bytes of at most 2^63-1";
            Err(wrong(&call, expected, "none"))
        }
    }
}

fn plausible(bench: &Bench) -> Verdict {
    let told = told(bench)?;
    if let Pool {
        size: Some(size),
        free: Some(free),
        ..
    } = told.pool
        && free > size
    {
        let expected = format!("at most {size} bytes free, the size of the pool");
        return Err(wrong(&told.call, expected, free.to_string()));
    }
    Ok(())
}

fn goes_down(bench: &Bench) -> Verdict {
    let before = told(bench)?;
    let made = bench.provision_new()?;
    let bytes = bench.run.bytes;
    let is_directory = bench.run.config.volume.kind == Kind::Directory;
    if is_directory && made.capacity.is_some_and(|told| told / 2 > bytes) {
        let why = "each volume may fill the whole file system: provision reserves nothing";
        return Err(not_applicable(why));
    }
    if before.bytes < bytes {
        let expected = format!("at least {bytes} bytes, which provision then made");
        return Err(wrong(&before.call, expected, before.bytes.to_string()));
    }
    let after = told(bench)?;
    // Backends have units, and other programs free something meanwhile.
    let least = bytes / 2;
    let less = |before: Option<u64>, after: Option<u64>| matches!((before, after), (Some(before), Some(after)) if before.saturating_sub(after) >= least);
    let is_counted = less(Some(before.bytes), Some(after.bytes))
        || less(before.pool.free, after.pool.free)
        || less(after.pool.promised, before.pool.promised);
    if is_counted {
        return Ok(());
    }
    let expected = format!("about {bytes} bytes less than {} before", before.bytes);
    Err(wrong(&after.call, expected, after.bytes.to_string()))
}
