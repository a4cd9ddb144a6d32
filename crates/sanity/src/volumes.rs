//! The volumes of a check: made, written down before that, and removed.

use crate::{
    bench::{Bench, On},
    callout::{
        argument::Options,
        call::{Manner, Outcome},
    },
    check::{Stop, Verdict, wrong},
    data, image,
    journal::{Made, Record, Traces},
    subject::Run,
    system::{cleanup, command, mounts},
    volume::{self, Source, Volume},
};
use anyhow::{Context, Result, ensure};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

impl Bench<'_> {
    /// A volume of the check's own, or the one there is.
    pub fn volume(&self) -> Result<Volume, Stop> {
        let run = self.run;
        let bytes = run.bytes;
        let number = run.count.fetch_add(1, Ordering::Relaxed);
        let name = match run.source {
            Source::None => {
                let why = "no volumes: give --options, or [volume] create and remove";
                return Err(Stop::Left(why.to_owned()));
            }
            Source::Existing => format!("sanity-{}", run.tag),
            _ => format!("sanity-{}-{number}", run.tag),
        };
        self.record(Record::Volume {
            name: name.clone(),
            bytes,
        })?;
        let volume = self.made(&name, bytes)?;
        self.record(Record::Options {
            name,
            options: volume.options.clone(),
        })?;
        let volume = Volume { bytes, ..volume };
        self.keep(volume.clone());
        Ok(volume)
    }

    fn made(&self, name: &str, bytes: u64) -> Result<Volume, Stop> {
        let run = self.run;
        let options = match run.source {
            Source::None | Source::Existing => run.config.options.clone(),
            Source::Hooks => {
                let size = bytes.to_string();
                let variables = [
                    ("SANITY_NAME", name),
                    ("SANITY_BYTES", &size),
                    ("SANITY_FSTYPE", &run.config.fs_type),
                ];
                let printed = command::hook(&run.config.volume.create, &variables)?;
                let mut options = run.config.options.clone();
                let more: Options = serde_json::from_str(&printed).with_context(|| {
                    format!("options that the create command printed: {printed:?}")
                })?;
                options.extend(more);
                options
            }
            Source::Images => {
                let imaged =
                    volume::image(&self.dir.join("images"), name, bytes, &run.config.options)?;
                return Ok(Volume {
                    content: Some(imaged.content),
                    device: imaged.device.map(Arc::new),
                    ..run.provisioned(name, imaged.options)?
                });
            }
            Source::Callouts => {
                let call = self.call(&run.provision(name, bytes))?;
                let Outcome::Success(reply) = call.outcome() else {
                    if call.not_supported() {
                        self.record(Record::Gone {
                            name: name.to_owned(),
                        })?;
                    }
                    return Err(wrong(&call, "provision makes a volume", "it did not"));
                };
                reply.options.unwrap_or_default()
            }
        };
        Ok(run.provisioned(name, options)?)
    }

    /// Removes a volume before the check's end, to make room.
    pub fn done_with(&self, volume: &Volume) -> Verdict {
        if self.run.source.is_fresh() {
            let traces = self.traces(&volume.name);
            self.let_go(volume);
            self.run.remove(&volume.name, &traces)?;
            self.record(Record::Gone {
                name: volume.name.clone(),
            })?;
        }
        Ok(())
    }

    /// A volume whose bytes can be reached, and are all zero: what is planted must not hit anything.
    pub fn block_volume(&self) -> Result<(Volume, PathBuf), Stop> {
        let volume = self.volume()?;
        let Some(content) = volume.content.clone() else {
            let why = "it is not known where a volume's bytes are: give [volume] content";
            return Err(Stop::Left(why.to_owned()));
        };
        ensure_content(&content)?;
        if !image::is_blank(&content)? {
            let why = "a blank volume: those that were made have something on them";
            return Err(Stop::Left(why.to_owned()));
        }
        Ok((volume, content))
    }
}

fn ensure_content(content: &Path) -> Result<()> {
    ensure!(
        content.exists(),
        "the volume's content is not at {}",
        content.display()
    );
    Ok(())
}

impl Bench<'_> {
    /// Removes the tester's files from a volume that stays.
    ///
    /// # Errors
    /// When they may be there still.
    pub fn unwrite(&self, made: &Made) -> Result<()> {
        let mut first = Ok(());
        for (name, traces) in &made.volumes {
            let options = traces.options.clone().filter(|_| traces.written);
            let Some(options) = options else { continue };
            let removed = (|| {
                let volume = self.run.provisioned(name, options)?;
                let place = self.up(&volume, "sanity-last", "rw")?;
                let removed = data::remove(self, &place);
                // What the driver does not take down the tester does.
                let _ = self.down(&place);
                removed
            })();
            let removed = removed.map_err(|stop: Stop| stop.error(&self.run.masks));
            first = first.and(removed.with_context(|| {
                format!("remove the directory {} from the volume", data::name(self))
            }));
        }
        first
    }
}

impl Run {
    /// Undoes what a run that is over had made, the tester's files in a volume that stays with it.
    pub fn undo_all(&self, made: &Made) -> Result<()> {
        let undone = self.undo(made);
        if self.source == Source::Existing {
            let bench = Bench::new(self, "undo")?;
            bench.adopt(made.volumes.clone());
            bench.close(false).cleared?;
        }
        undone
    }

    /// Undoes what was made outside of the tester's directory.
    pub fn undo(&self, made: &Made) -> Result<()> {
        let mut first = Ok(());
        // Of a volume, the pod's directory before the node's.
        for (directory, on) in made.mounts.iter().rev() {
            first = first.and(self.unmount(directory, *on));
        }
        for (name, traces) in &made.volumes {
            first = first.and(self.remove(name, traces));
        }
        first
    }

    /// Has the driver unmount what it has mounted still.
    fn unmount(&self, directory: &Path, on: On) -> Result<()> {
        if self.journal.is_some() && mounts::at(directory)?.is_empty() {
            return Ok(());
        }
        let callout = match on {
            On::Pod => "unmount",
            On::Node => "unmountdevice",
        };
        let directory = directory.to_string_lossy().into_owned();
        // What it leaves is taken off by the tester.
        self.call(&[callout.to_owned(), directory], &Manner::default())
            .map(drop)
    }

    /// Detaches a volume wherever it may be, and removes it if it was made.
    pub fn remove(&self, name: &str, traces: &Traces) -> Result<()> {
        if self.capabilities.attach {
            for node in &traces.nodes {
                let argv = ["detach".to_owned(), name.to_owned(), node.clone()];
                self.call(&argv, &Manner::default())?;
            }
        }
        self.release(traces)?;
        match self.source {
            Source::Hooks => {
                let options = traces.options.clone().unwrap_or_default();
                let options = serde_json::to_string(&options).context("write options")?;
                let variables = [("SANITY_NAME", name), ("SANITY_OPTIONS", &options)];
                command::hook(&self.config.volume.remove, &variables).map(drop)
            }
            Source::Callouts => {
                let Some(options) = self.options_of(name, traces)? else {
                    return Ok(());
                };
                let volume = Volume {
                    content: None,
                    ..self.provisioned(name, options)?
                };
                let argv = ["delete".to_owned(), volume.json("rw")];
                let call = self.call(&argv, &Manner::default())?;
                ensure!(
                    call.succeeded(),
                    "delete a volume of the tester: {}",
                    call.answer(&self.masks)
                );
                Ok(())
            }
            Source::Existing | Source::Images | Source::None => Ok(()),
        }
    }

    /// Removes the loop devices that the driver left on a volume of the tester's, which are returned.
    pub fn release(&self, traces: &Traces) -> Result<Vec<String>> {
        let Some(options) = traces.options.as_ref().filter(|_| self.source.is_fresh()) else {
            return Ok(Vec::new());
        };
        // What every volume is given, such as a pool, is not the tester's.
        let config = &self.config;
        let shared = || {
            config
                .options
                .values()
                .chain(config.volume.parameters.values())
        };
        let mut named: BTreeSet<_> = options.values().map(Path::new).collect();
        named.retain(|value| shared().all(|given| Path::new(given) != *value));
        // Nor is what was there before any volume of the run: then the driver names somebody's file.
        cleanup::release(|one| named.contains(Path::new(&one.1)) && !self.loops.contains(one))
    }

    /// The options of a volume whose making was cut: making it again tells them.
    fn options_of(&self, name: &str, traces: &Traces) -> Result<Option<Options>> {
        if traces.options.is_some() {
            return Ok(traces.options.clone());
        }
        let call = self.call(&self.provision(name, traces.bytes), &Manner::default())?;
        Ok(match call.outcome() {
            Outcome::Success(reply) => Some(reply.options.unwrap_or_default()),
            _ => None,
        })
    }
}
