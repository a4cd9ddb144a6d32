//! The verbs for people: text on standard output, errors on standard error, the usual exit codes.

mod pool;

use crate::installed::Installed;
use anyhow::Result;
use clap::{Parser, Subcommand};
use std::{
    ffi::OsStr,
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

/// A FlexVolume driver whose volumes grow.
#[derive(Debug, Parser)]
#[command(name = "flexvol", version, disable_help_subcommand = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make and look at pools, the places volumes are carved from
    #[command(subcommand)]
    Pool(pool::Verb),
}

/// The words that people say and callers do not.
const WORDS: &[&str] = &["pool"];

/// Whether the first argument is for people.
pub fn is_verb(word: &OsStr) -> bool {
    word.to_str()
        .is_some_and(|word| word.starts_with('-') || WORDS.contains(&word))
}

/// Answers a person.
pub fn run(_installed: &Installed) -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return explain_usage(&error),
    };
    let outcome = match cli.verb {
        Verb::Pool(verb) => verb.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error),
    }
}
