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
    check::Stop,
    first,
    journal::Record,
    subject::Run,
    system::{self, cleanup},
    volume::{Source, Volume},
};
use anyhow::{Context, Result};
use std::{collections::BTreeSet, path::Path};

impl Run {
    /// Asks the driver what it does not do at all, and how volumes are had.
    pub fn discover(&mut self) -> Result<()> {
        self.first = Some(first::init(self)?);
        let init = self.call(&["init".to_owned()], &Manner::default())?;
        if let Outcome::Success(reply) = init.outcome()
            && let Told::Some(_, capabilities) = reply.capabilities
        {
            self.capabilities = capabilities;
        }
        self.unknown = self.doubtful()?;
        let guess = self.source == Source::None;
        if guess {
            self.source = Source::Callouts;
        }
        self.gone = self.like_existing();
        self.record_known()?;
        let bench = Bench::new(self, "discover")?;
        let found = asked(&bench);
        let closed = bench.close(false);
        match found {
            Ok((volume, unsupported)) => {
                closed.cleared?;
                self.option_keys.extend(volume.options.keys().cloned());
                if self.source.is_fresh() && self.source != Source::Images {
                    self.gone = removed(&volume.options, &self.tag);
                }
                self.unknown.clear();
                self.unsupported = unsupported;
            }
            // It has no such callout, which is nothing to complain about.
            Err(_) if guess => self.source = Source::None,
            // The checks that need a volume say so.
            Err(_) => {}
        }
        self.record_known()
    }

    /// Writes down what one needs to know of the driver to undo what is made with it.
    fn record_known(&self) -> Result<()> {
        self.record(&Record::Known {
            source: self.source.clone(),
            attach: self.capabilities.attach,
            unsupported: &self.unsupported | &self.unknown,
        })
    }

    /// What is called Not supported of a volume that does not exist.
    fn doubtful(&self) -> Result<BTreeSet<String>> {
        let place = self.scratch.join("nobody");
        let mut doubtful = BTreeSet::new();
        for callout in CALLOUTS.iter().skip(1).filter(|name| self.is_called(name)) {
            let directory = place.join(callout);
            system::make_directory(&directory).context("make a directory")?;
            let argv = self.nobody(callout, &directory);
            if self.call(&argv, &Manner::default())?.not_supported() {
                doubtful.insert((*callout).to_owned());
            }
        }
        cleanup::clear(&place)?;
        Ok(doubtful)
    }

    /// Options like those of the configuration, for a volume that does not exist.
    fn like_existing(&self) -> Options {
        let nobody = format!("sanity-{}-nobody", self.tag);
        let image = self.scratch.join(format!("{nobody}.img"));
        let other = |text: &String| match self.source {
            Source::Images => text
                .replace("{image}", &image.to_string_lossy())
                .replace("{device}", &format!("/dev/{nobody}"))
                .replace("{name}", &nobody),
            _ => format!("{text}-{nobody}"),
        };
        let options = self.config.options.iter();
        options
            .map(|(key, text)| (key.clone(), other(text)))
            .collect()
    }
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
