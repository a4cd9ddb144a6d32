//! Runs other programs to completion.

use anyhow::{Context, Result, bail};
use std::{
    io::Write,
    process::{Command, Stdio},
};

/// Runs a program and returns its standard output.
///
/// # Errors
/// When the program cannot be started or fails, with its output.
pub fn run(command: &mut Command) -> Result<String> {
    run_with(command, "")
}

/// Runs a program with this standard input and returns its standard output.
///
/// # Errors
/// When the program cannot be started or fails, with its output.
pub fn run_with(command: &mut Command, input: &str) -> Result<String> {
    let name = command.get_program().display().to_string();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {name}"))?;
    let mut stdin = child.stdin.take().context("a pipe to the program")?;
    // If the program does not read its input, its exit status decides.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child
        .wait_with_output()
        .with_context(|| format!("wait for {name}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let arguments: Vec<_> = command
        .get_args()
        .map(|argument| argument.to_string_lossy())
        .collect();
    bail!(
        "{name} {}: {}\n{}{}",
        arguments.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
