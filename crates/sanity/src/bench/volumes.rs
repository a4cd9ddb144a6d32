//! Makes the volumes of a check. Each is recorded in the journal first.

use crate::{
    bench::Bench,
    callout::{argument::Options, call::Outcome},
    journal::record::Record,
    system::command,
    verdict::{Stop, Verdict, wrong},
    volume::{Source, Volume, content, image},
};
use anyhow::{Context, Result, ensure};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

impl Bench<'_> {
    /// Makes a volume for the check, or returns the existing one.
    pub fn volume(&self) -> Result<Volume, Stop> {
        let run = self.run;
        let bytes = run.bytes;
        let number = run.count.fetch_add(1, Ordering::Relaxed);
        let name = match run.source {
            Source::None => {
                let why = "no volumes: give --options, or [volume] create and remove";
                return Err(Stop::Skipped(why.to_owned()));
            }
            Source::Existing => format!("sanity-{}", run.tag),
            _ => format!("sanity-{}-{number}", run.tag),
        };
        self.record(Record::Volume {
            name: name.clone(),
            bytes,
            provisioned: run.source == Source::Callouts,
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
                    image::make(&self.dir.join("images"), name, bytes, &run.config.options)?;
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

    /// Removes a volume before the end of the check, to free its space.
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

    /// Makes a volume whose content the tester can reach and that is blank, so that planted data overwrites nothing.
    pub fn block_volume(&self) -> Result<(Volume, PathBuf), Stop> {
        let volume = self.volume()?;
        let Some(content) = volume.content.clone() else {
            let why = "it is not known where a volume's bytes are: give [volume] content";
            return Err(Stop::Skipped(why.to_owned()));
        };
        ensure_content(&content)?;
        if !content::is_blank(&content)? {
            let why = "a blank volume: those that were made have something on them";
            return Err(Stop::Skipped(why.to_owned()));
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
