//! The formats of the command's output.

use super::Row;
use clap::ValueEnum;
use flexvol_sdk::Bytes;
use serde_json::{Value, json};
use std::fmt::Write;

/// A format of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    #[default]
    /// Columns, with sizes rounded down
    Table,
    /// The same: a table has all columns
    Wide,
    /// One object, with exact sizes
    Json,
    /// One document, with exact sizes
    Yaml,
    /// namespace/name of claims
    Name,
}

pub(super) fn format(output: Output, rows: &[Row], settled: usize) -> String {
    let value = || json!({ "volumes": rows, "settled": settled });
    match output {
        Output::Table | Output::Wide => table(rows, settled),
        Output::Json => format!("{:#}\n", value()),
        Output::Yaml => yaml(rows, settled),
        Output::Name => rows
            .iter()
            .filter(|row| row.claim != "-")
            .map(|row| format!("{}\n", row.claim))
            .collect(),
    }
}

/// Writes texts as JSON does, which is YAML too.
fn yaml(rows: &[Row], settled: usize) -> String {
    let list = if rows.is_empty() { " []" } else { "" };
    let mut text = format!("settled: {settled}\nvolumes:{list}\n");
    for row in rows {
        let members = json!(row);
        for (number, (key, value)) in members.as_object().into_iter().flatten().enumerate() {
            let begin = if number == 0 { "- " } else { "  " };
            let value: &Value = value;
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{begin}{key}: {value}");
        }
    }
    text
}

pub(super) fn table(rows: &[Row], settled: usize) -> String {
    let head = [
        "CLAIM",
        "VOLUME",
        "NODE",
        "STATE",
        "REQUESTED",
        "HAS",
        "WHY",
    ];
    let mut lines = vec![head.map(str::to_owned)];
    // Drivers' messages are untrusted: control characters are replaced, which also joins lines.
    let shown = |cell: &str| cell.replace(char::is_control, " ");
    // Exact sizes are for programs.
    let sized = |size: &str| match size.parse::<Bytes>() {
        Ok(bytes) => format!("{bytes:#}"),
        Err(_) => size.to_owned(),
    };
    lines.extend(rows.iter().map(|row| {
        let (asked, has) = (sized(&row.asked), sized(&row.has));
        let Row {
            claim,
            volume,
            node,
            state,
            why,
            ..
        } = row;
        [claim, volume, node, *state, &asked, &has, why].map(shown)
    }));
    let mut text = String::new();
    if !rows.is_empty() {
        let width = |column: usize| {
            let widths = lines.iter().map(|line| line[column].chars().count());
            widths.max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..head.len()).map(width).collect();
        for line in &lines {
            let cells = line
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:width$}"));
            text += cells.collect::<Vec<_>>().join("  ").trim_end();
            text.push('\n');
        }
    }
    text + &format!("{settled} volumes are settled\n")
}
