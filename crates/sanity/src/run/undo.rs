//! How what a run made outside of its own directory is undone: by the driver, or the vendor's command.

use super::Run;
use crate::{
    callout::{
        argument::Options,
        call::{Manner, Outcome},
    },
    journal::record::{Made, Traces},
    system::{cleanup, command, mounts},
    volume::{On, Source, Volume},
};
use anyhow::{Context, Result, ensure};
use std::{collections::BTreeSet, path::Path};

impl Run {
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
