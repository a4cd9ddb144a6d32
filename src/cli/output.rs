//! The output formats of verbs that show something.

use super::{print, yaml};
use anyhow::Result;
use clap::ValueEnum;
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    #[value(alias = "text")]
    Table,
    /// As a table, with everything that is known
    Wide,
    Json,
    Yaml,
    /// What other commands take
    Name,
}

impl Output {
    /// Prints a value in a format for programs; otherwise returns false.
    pub fn structured(self, value: &Value) -> Result<bool> {
        match self {
            Output::Json => print(format_args!("{value:#}"))?,
            Output::Yaml => print(format_args!("{}", yaml::document(value).trim_end()))?,
            Output::Table | Output::Wide | Output::Name => return Ok(false),
        }
        Ok(true)
    }
}
