//! Records of calls, one line of JSON each, without their secrets.

use anyhow::{Context, Result};
use flexvol_storage::sdk::Callout;
use serde::Serialize;
use serde_json::{Map, Value};
use std::{
    ffi::OsString,
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

const SECRET: &str = "kubernetes.io/secret/";
/// Base64 of `[secret]`, so that a recorded call can be repeated.
const REDACTED: &str = "W3NlY3JldF0=";

#[derive(Serialize)]
struct Line<'a> {
    scenario: &'a str,
    /// The time of day in UTC.
    time: String,
    caller: &'a str,
    driver: &'a str,
    argv: Vec<String>,
    /// The duration of the call.
    milliseconds: u128,
    /// The object, or the text of a reply that is no object.
    reply: Value,
}

/// Appends one call to a file that only its owner can read.
pub fn append(
    file: &Path,
    caller: &str,
    driver: &str,
    argv: &[OsString],
    reply: &[u8],
    took: Duration,
) -> Result<()> {
    let secrets = secrets_of(argv);
    let line = Line {
        scenario: "call",
        time: time_of_day(SystemTime::now()),
        caller,
        driver,
        argv: argv.iter().map(redact).collect(),
        milliseconds: took.as_millis(),
        reply: without(read(reply), &secrets),
    };
    let mut text = serde_json::to_string(&line).context("write JSON")?;
    text.push('\n');
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(file)?;
    Ok(file.write_all(text.as_bytes())?)
}

fn read(reply: &[u8]) -> Value {
    let text = || Value::String(String::from_utf8_lossy(reply).into_owned());
    serde_json::from_slice(reply).unwrap_or_else(|_| text())
}

/// Returns all texts that must not be recorded, both encoded and decoded.
fn secrets_of(argv: &[OsString]) -> Vec<String> {
    let mut secrets = Vec::new();
    for argument in argv {
        let entries = object(&argument.to_string_lossy()).unwrap_or_default();
        let encoded = entries
            .into_iter()
            .filter(|(key, _)| key.starts_with(SECRET));
        secrets.extend(encoded.filter_map(|(_, value)| value.as_str().map(str::to_owned)));
    }
    if let Ok(Callout::Mount(request)) = Callout::parse(argv) {
        for secret in request.secrets.values() {
            let text = String::from_utf8_lossy(secret.expose());
            secrets.push(text.trim().to_owned());
            secrets.push(text.into_owned());
        }
    }
    secrets.retain(|secret| !secret.is_empty());
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets
}

fn redact(argument: &OsString) -> String {
    let text = argument.to_string_lossy().into_owned();
    match object(&text) {
        Some(mut entries) if entries.keys().any(|key| key.starts_with(SECRET)) => {
            for (_, value) in entries
                .iter_mut()
                .filter(|(key, _)| key.starts_with(SECRET))
            {
                *value = REDACTED.into();
            }
            Value::Object(entries).to_string()
        }
        // Text that is no JSON may hold a secret anywhere; a key may be written with escapes.
        None if text.contains(SECRET) || text.contains('\\') => "[secret]".to_owned(),
        _ => text,
    }
}

fn object(text: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(text).ok()
}

fn without(value: Value, secrets: &[String]) -> Value {
    match value {
        Value::String(text) => Value::String(
            secrets
                .iter()
                .fold(text, |text, secret| text.replace(secret, "[secret]")),
        ),
        Value::Array(items) => items
            .into_iter()
            .map(|item| without(item, secrets))
            .collect(),
        Value::Object(entries) => entries
            .into_iter()
            .map(|(key, value)| (key, without(value, secrets)))
            .collect(),
        other => other,
    }
}

fn time_of_day(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs() % 86_400;
    format!(
        "{:02}:{:02}:{:02}.{:03}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        since.subsec_millis()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("calls");
        let json = r#"{"a":"b","kubernetes.io/secret/k":"aHVudGVyMg=="}"#;
        let reply = br#"{"status":"Failure","message":"hunter2 or aHVudGVyMg=="}"#;
        let argv = ["mount", "/dir", json].map(OsString::from);
        append(&file, "me", "disk", &argv, reply, Duration::from_millis(7)).unwrap();
        append(
            &file,
            "me",
            "disk",
            &[
                "mount".into(),
                "{broken kubernetes.io/secret/k hunter2".into(),
            ],
            b"no JSON",
            Duration::ZERO,
        )
        .unwrap();
        for escaped in [
            r#"{"kubernetes.io\/secret\/k":"aHVudGVyMg=="}"#,
            r#"{"kubernetes.io\u002fsecret/k":"aHVudGVyMg==""#,
        ] {
            let argv = ["mount", "/dir", escaped].map(OsString::from);
            append(&file, "me", "disk", &argv, b"{}", Duration::ZERO).unwrap();
        }
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(
            !text.contains("hunter2") && !text.contains("aHVudGVyMg"),
            "{text}"
        );
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(
            lines[0]["argv"][2],
            r#"{"a":"b","kubernetes.io/secret/k":"W3NlY3JldF0="}"#
        );
        assert_eq!(lines[0]["reply"]["message"], "[secret] or [secret]");
        assert_eq!(lines[1]["reply"], "no JSON");
        assert_eq!(lines[0]["milliseconds"], 7);
        assert_eq!(
            (&lines[0]["caller"], &lines[0]["driver"]),
            (&"me".into(), &"disk".into())
        );
    }

    #[test]
    fn times_are_those_of_the_day() {
        let time = UNIX_EPOCH + Duration::from_millis(86_400_000 + 3_723_045);
        assert_eq!(time_of_day(time), "01:02:03.045");
    }
}
