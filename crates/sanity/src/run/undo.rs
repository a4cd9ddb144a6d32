//! Undoes what a run made outside its own directory, with the driver or the vendor's command.

use super::Run;
use crate::{
    callout::{
        argument::Options,
        call::{CallOptions, Outcome},
    },
    journal::record::{Made, Traces},
    system::{cleanup, command, mounts},
    volume::{Source, Stage},
};
use anyhow::{Context, Result, ensure};
use std::{collections::BTreeSet, path::Path};

impl Run {
    /// Undoes what was made outside of the tester's directory.
    pub fn undo(&self, made: &Made) -> Result<()> {
        let mut first = Ok(());
        // The pod's mount of a volume goes before the node's.
        for (directory, on) in made.mounts.iter().rev() {
            first = first.and(self.unmount(directory, *on));
        }
        for (name, traces) in &made.volumes {
            first = first.and(self.remove(name, traces));
        }
        first
    }

    /// Makes the driver unmount a directory if it is still mounted.
    fn unmount(&self, directory: &Path, stage: Stage) -> Result<()> {
        if self.journal.is_some() && mounts::at(directory)?.is_empty() {
            return Ok(());
        }
        let callout = match stage {
            Stage::Pod => "unmount",
            Stage::Node => "unmountdevice",
        };
        let directory = directory.to_string_lossy().into_owned();
        // The caller removes a mount that the driver leaves.
        self.call(&[callout.to_owned(), directory], &CallOptions::default())
            .map(drop)
    }

    /// Detaches a volume from all nodes in its record, and removes it if the run made it.
    pub fn remove(&self, name: &str, traces: &Traces) -> Result<()> {
        if self.capabilities.attach {
            for node in &traces.nodes {
                let argv = ["detach".to_owned(), name.to_owned(), node.clone()];
                self.call(&argv, &CallOptions::default())?;
            }
        }
        self.release(traces)?;
        let source = match traces.provisioned {
            true => &Source::Callouts,
            false => &self.source,
        };
        match source {
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
                let argv = ["delete".to_owned(), self.bare(name, options).json("rw")];
                let call = self.call(&argv, &CallOptions::default())?;
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

    /// Removes the loop devices that the driver left on a volume of the tester's, and returns them.
    pub fn release(&self, traces: &Traces) -> Result<Vec<String>> {
        let Some(options) = traces.options.as_ref().filter(|_| self.source.is_fresh()) else {
            return Ok(Vec::new());
        };
        // A value that all volumes share, such as a pool, does not belong to the tester.
        let config = &self.config;
        let shared = || {
            config
                .options
                .values()
                .chain(config.volume.parameters.values())
        };
        let mut named: BTreeSet<_> = options.values().map(Path::new).collect();
        named.retain(|value| shared().all(|given| Path::new(given) != *value));
        // Neither does a loop device from before the run, whose file the driver may name.
        cleanup::release(|one| named.contains(Path::new(&one.1)) && !self.loops.contains(one))
    }

    /// Returns the options of a volume. If `provision` was interrupted, repeats it to get them.
    fn options_of(&self, name: &str, traces: &Traces) -> Result<Option<Options>> {
        if traces.options.is_some() {
            return Ok(traces.options.clone());
        }
        let call = self.call(&self.provision(name, traces.bytes), &CallOptions::default())?;
        Ok(match call.outcome() {
            Outcome::Success(reply) => Some(reply.options.unwrap_or_default()),
            _ => None,
        })
    }
}
