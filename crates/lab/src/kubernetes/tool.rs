//! Other programs, run to their end.

use anyhow::{Context, Result, bail};
use std::process::{Command, Stdio};

/// Runs a program and returns what it wrote.
///
/// # Errors
/// When it cannot be started or fails; with its words.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {}", command.get_program().display()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    bail!(
        "{} {}: {}\n{}{}",
        command.get_program().display(),
        command
            .get_args()
            .map(|argument| argument.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" "),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
