//! Asks a driver for its capabilities before any check: with `init`, and by the callouts to which it answers
//! Not supported. That answer is inconclusive if the volume does not exist. If it exists, Kubernetes takes the
//! answer as valid for the whole driver, and so does the tester.

use crate::{
    bench::Bench,
    callout::{
        CALLOUTS,
        argument::Options,
        call::{CallOptions, Outcome},
        reply::DeclaredCapabilities,
    },
    journal::record::Record,
    run::{Run, first_init},
    system::{self, cleanup},
    verdict::Stop,
    volume::{Source, Volume},
};
use anyhow::{Context, Result};
use std::{collections::BTreeSet, path::Path};

/// Finds out which callouts the driver does not support, and how volumes can be made.
pub fn discover(run: &mut Run) -> Result<()> {
    run.first = Some(first_init::init(run)?);
    let init = run.call(&["init".to_owned()], &CallOptions::default())?;
    if let Outcome::Success(reply) = init.outcome()
        && let DeclaredCapabilities::Some(_, capabilities) = reply.capabilities
    {
        run.capabilities = capabilities;
    }
    run.inconclusive = inconclusive_callouts(run)?;
    let guess = run.source == Source::None;
    if guess {
        run.source = Source::Callouts;
    }
    run.missing_options = like_existing(run);
    record_known(run)?;
    let bench = Bench::new(run, "discover")?;
    let found = probe_volume(&bench);
    let closed = bench.close(false);
    match found {
        Ok((volume, unsupported)) => {
            closed.cleared?;
            run.option_keys.extend(volume.options.keys().cloned());
            if run.source.is_fresh() && run.source != Source::Images {
                run.missing_options = removed(&volume.options, &run.tag);
            }
            run.inconclusive.clear();
            run.unsupported = unsupported;
        }
        // The driver has no `provision`, which is no fault.
        Err(_) if guess => run.source = Source::None,
        // The checks that need a volume report this.
        Err(_) => {}
    }
    record_known(run)
}

/// Records what is needed to undo what the run makes with this driver.
fn record_known(run: &Run) -> Result<()> {
    run.record(&Record::Known {
        source: run.source.clone(),
        attach: run.capabilities.attach,
        unsupported: &run.unsupported | &run.inconclusive,
    })
}

/// Returns the callouts that answer Not supported for a volume that does not exist.
fn inconclusive_callouts(run: &Run) -> Result<BTreeSet<String>> {
    let place = run.scratch.join("nobody");
    let mut inconclusive = BTreeSet::new();
    for callout in CALLOUTS.iter().skip(1).filter(|name| run.is_called(name)) {
        let directory = place.join(callout);
        system::make_directory(&directory).context("make a directory")?;
        let argv = run.missing_volume_arguments(callout, &directory);
        if run.call(&argv, &CallOptions::default())?.not_supported() {
            inconclusive.insert((*callout).to_owned());
        }
    }
    cleanup::clear(&place)?;
    Ok(inconclusive)
}

/// Returns options like those of the configuration, for a volume that does not exist.
fn like_existing(run: &Run) -> Options {
    let nobody = format!("sanity-{}-nobody", run.tag);
    let image = run.scratch.join(format!("{nobody}.img"));
    let other = |text: &String| match run.source {
        Source::Images => text
            .replace("{image}", &image.to_string_lossy())
            .replace("{device}", &format!("/dev/{nobody}"))
            .replace("{name}", &nobody),
        _ => format!("{text}-{nobody}"),
    };
    let options = run.config.options.iter();
    options
        .map(|(key, text)| (key.clone(), other(text)))
        .collect()
}

/// Returns the options of a removed volume. Device names are replaced, because the kernel reuses them.
fn removed(options: &Options, tag: &str) -> Options {
    let other = |text: &String| {
        if Path::new(text).starts_with("/dev") {
            format!("/dev/sanity-{tag}-nobody")
        } else {
            text.clone()
        }
    };
    let options = options.iter();
    options
        .map(|(key, text)| (key.clone(), other(text)))
        .collect()
}

/// Repeats the inconclusive callouts for a volume that exists, in the order of its life.
fn probe_volume(bench: &Bench) -> Result<(Volume, BTreeSet<String>), Stop> {
    let run = bench.run;
    let volume = bench.volume()?;
    let mut unsupported = BTreeSet::new();
    // The checks judge failures; here they do not matter.
    let device = bench.attach_and_wait(&volume, "rw").unwrap_or_default();
    let directory = bench.dir.join("place");
    system::make_directory(&directory).context("make a directory")?;
    let mut inconclusive: Vec<_> = run.inconclusive.iter().collect();
    let place = |name: &str| CALLOUTS.iter().position(|known| *known == name);
    inconclusive.sort_by_key(|name| (name.as_str() == "detach", place(name)));
    for callout in inconclusive {
        let argv = run.arguments(callout, &volume, &directory, &device);
        if bench.call(&argv)?.not_supported() {
            unsupported.insert(callout.clone());
        }
    }
    Ok((volume, unsupported))
}
