//! The log: one line of JSON for each entry, on standard error.
//!
//! Every entry has `ts` (RFC 3339, UTC), `level` and `msg`. What an entry is about is in fields that keep their names
//! from version to version; `docs/reference/logs.md` lists them.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// Writes an entry with its fields.
pub fn write(level: &str, message: &str, about: &[(&str, &str)]) {
    let line = entry(&Timestamp::now().to_string(), level, message, about);
    // A failed write to standard error cannot be reported.
    let _ = writeln!(io::stderr(), "{line}");
}

/// Logs the expected.
pub fn info(message: &str, about: &[(&str, &str)]) {
    write("info", message, about);
}

/// Logs a failure, or something unexpected.
pub fn warn(message: &str, about: &[(&str, &str)]) {
    write("warn", message, about);
}

fn entry(now: &str, level: &str, message: &str, about: &[(&str, &str)]) -> Value {
    let mut line = Map::new();
    for (key, value) in [("ts", now), ("level", level), ("msg", message)] {
        line.insert(key.to_owned(), json!(value));
    }
    for (key, value) in about.iter().filter(|(_, value)| !value.is_empty()) {
        match value.split_once('/') {
            Some((namespace, name)) if *key == "claim" => {
                line.insert("namespace".to_owned(), json!(namespace));
                line.insert("claim".to_owned(), json!(name));
            }
            _ => {
                line.insert((*key).to_owned(), json!(value));
            }
        }
    }
    Value::Object(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_says_when_how_bad_and_what_and_a_claim_has_its_namespace_in_a_field() {
        let about = [("claim", "shop/data"), ("volume", ""), ("error", "a/b")];
        let line = entry("2026-01-01T00:00:00Z", "warn", "a volume waits", &about);
        assert_eq!(
            line,
            json!({
                "ts": "2026-01-01T00:00:00Z",
                "level": "warn",
                "msg": "a volume waits",
                "namespace": "shop",
                "claim": "data",
                "error": "a/b",
            })
        );
    }
}
