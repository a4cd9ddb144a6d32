//! The page about the chart's values, which is written from their schema and defaults.

use super::render::chart;
use crate::project::project;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

const PAGE: &str = "docs/reference/chart.md";

/// Precedes the table, which ends the page.
const MARK: &str = "<!-- scripts/lab chart --write -->\n";

/// Longest default that the table shows.
const LONGEST: usize = 60;

pub fn file() -> PathBuf {
    project().join(PAGE)
}

/// Returns the page as the chart has it.
///
/// # Errors
/// When a value of the schema is not in `values.yaml`, or has no description.
pub fn page() -> Result<String> {
    let found = read(&file())?;
    let (before, _) = found
        .split_once(MARK)
        .context("find the place of the table in the page")?;
    let schema: Value = serde_json::from_str(&read(&chart().join("values.schema.json"))?)
        .context("read the schema of the values")?;
    let defaults: Value = serde_saphyr::from_str(&read(&chart().join("values.yaml"))?)
        .context("read the chart's values")?;
    let mut table = "\n| value | default | what it is |\n|---|---|---|\n".to_owned();
    add_rows(&mut table, "", &schema, Some(&defaults))?;
    Ok(format!("{before}{MARK}{table}"))
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("read {}", file.display()))
}

/// Adds a row for each value of an object. Those in lists have no defaults.
fn add_rows(table: &mut String, prefix: &str, of: &Value, defaults: Option<&Value>) -> Result<()> {
    for (name, value) in of["properties"].as_object().into_iter().flatten() {
        let path = format!("{prefix}{name}");
        let said = value["description"].as_str();
        let said = said.with_context(|| format!("{path} has no description in the schema"))?;
        // Former values, which are refused, and what Helm passes to every chart.
        if said.starts_with("Renamed") || name == "global" {
            continue;
        }
        let default = defaults.map(|all| &all[name.as_str()]);
        // A part of one of Kubernetes' own objects needs no default.
        let is_part = prefix.starts_with("node.updateStrategy");
        ensure!(
            is_part || default.is_none_or(|default| !default.is_null()),
            "{path} is not in values.yaml"
        );
        let has_parts = value["properties"].is_object() && !is_part;
        let shown = match default.filter(|_| !has_parts) {
            Some(default) if !default.is_null() => shown(default),
            _ => String::new(),
        };
        writeln!(
            table,
            "| `{path}` | {shown} | {} |",
            said.replace('|', "\\|")
        )?;
        add_rows(table, &format!("{path}."), value, default)?;
        if value["items"]["properties"].is_object() {
            add_rows(table, &format!("{path}[]."), &value["items"], None)?;
        }
    }
    Ok(())
}

fn shown(default: &Value) -> String {
    let text = match default {
        Value::String(text) if text.is_empty() => return "empty".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.len() <= LONGEST {
        true => format!("`{text}`"),
        false => "[values.yaml](../../deploy/chart/values.yaml)".to_owned(),
    }
}
