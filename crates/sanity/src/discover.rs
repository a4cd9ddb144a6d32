//! What a driver says of itself before anything is checked: in `init`, and by what it calls Not
//! supported. That word about a volume that does not exist decides nothing; about one that does, it
//! is what Kubernetes remembers for the whole driver.

use crate::{
    bench::Bench,
    callout::{
        CALLOUTS,
        argument::Options,
        call::{Manner, Outcome},
        reply::Told,
    },
    journal::record::Record,
    run::{Run, first_init},
    system::{self, cleanup},
    verdict::Stop,
    volume::{Source, Volume},
};
use anyhow::{Context, Result};
use std::{collections::BTreeSet, path::Path};

/// Asks the driver what it does not do at all, and how volumes are had.
pub fn discover(run: &mut Run) -> Result<()> {
    run.first = Some(first_init::init(run)?);
    let init = run.call(&["init".to_owned()], &Manner::default())?;
    if let Outcome::Success(reply) = init.outcome()
        && let Told::Some(_, capabilities) = reply.capabilities
    {
        run.capabilities = capabilities;
    }
    run.unknown = doubtful(run)?;
    let guess = run.source == Source::None;
    if guess {
        run.source = Source::Callouts;
    }
    run.gone = like_existing(run);
    record_known(run)?;
    let bench = Bench::new(run, "discover")?;
    let found = asked(&bench);
    let closed = bench.close(false);
    match found {
        Ok((volume, unsupported)) => {
            closed.cleared?;
            run.option_keys.extend(volume.options.keys().cloned());
            if run.source.is_fresh() && run.source != Source::Images {
                run.gone = removed(&volume.options, &run.tag);
            }
            run.unknown.clear();
            run.unsupported = unsupported;
        }
        // It has no such callout, which is nothing to complain about.
        Err(_) if guess => run.source = Source::None,
        // The checks that need a volume say so.
        Err(_) => {}
    }
    record_known(run)
}

/// Writes down what one needs to know of the driver to undo what is made with it.
fn record_known(run: &Run) -> Result<()> {
    run.record(&Record::Known {
        source: run.source.clone(),
        attach: run.capabilities.attach,
        unsupported: &run.unsupported | &run.unknown,
    })
}

/// What is called Not supported of a volume that does not exist.
fn doubtful(run: &Run) -> Result<BTreeSet<String>> {
    let place = run.scratch.join("nobody");
    let mut doubtful = BTreeSet::new();
    for callout in CALLOUTS.iter().skip(1).filter(|name| run.is_called(name)) {
        let directory = place.join(callout);
        system::make_directory(&directory).context("make a directory")?;
        let argv = run.nobody(callout, &directory);
        if run.call(&argv, &Manner::default())?.not_supported() {
            doubtful.insert((*callout).to_owned());
        }
    }
    cleanup::clear(&place)?;
    Ok(doubtful)
}

/// Options like those of the configuration, for a volume that does not exist.
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

/// Options of a volume that was removed. A device's name may be another device's by now.
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

/// Asks again for a volume that exists, in the order of its life.
fn asked(bench: &Bench) -> Result<(Volume, BTreeSet<String>), Stop> {
    let run = bench.run;
    let volume = bench.volume()?;
    let mut unsupported = BTreeSet::new();
    // What goes wrong here is for the checks to judge.
    let device = bench.attached(&volume, "rw").unwrap_or_default();
    let directory = bench.dir.join("place");
    system::make_directory(&directory).context("make a directory")?;
    let mut doubtful: Vec<_> = run.unknown.iter().collect();
    let place = |name: &str| CALLOUTS.iter().position(|known| *known == name);
    doubtful.sort_by_key(|name| (name.as_str() == "detach", place(name)));
    for callout in doubtful {
        let argv = run.arguments(callout, &volume, &directory, &device);
        if bench.call(&argv)?.not_supported() {
            unsupported.insert(callout.clone());
        }
    }
    Ok((volume, unsupported))
}
