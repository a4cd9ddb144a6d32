//! `flexvol man`: the manual.

use super::{Cli, print_bytes};
use anyhow::{Context, Result};
use clap::{Args, CommandFactory};
use clap_mangen::Man;

/// Print a page of the manual, in roff
///
/// To read it: flexvol man | man -l -
#[derive(Debug, Args)]
pub struct Manual {
    /// The verb that the page is about [default: the page about all of them]
    verb: Option<String>,
}

impl Manual {
    pub fn run(self) -> Result<()> {
        let mut command = Cli::command();
        command.build();
        let page = match &self.verb {
            None => command,
            Some(verb) => command
                .find_subcommand(verb)
                .with_context(|| format!("there is no verb {verb:?}"))?
                .clone(),
        };
        let mut text = Vec::new();
        Man::new(page).render(&mut text).context("write the page")?;
        print_bytes(&text)
    }
}
