//! The log: one line of JSON for each entry, on standard error.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// Writes an entry with its fields.
pub fn write(level: &str, message: &str, about: &[(&str, &str)]) {
    let mut line = Map::new();
    line.insert("time".to_owned(), json!(Timestamp::now().to_string()));
    line.insert("level".to_owned(), json!(level));
    line.insert("message".to_owned(), json!(message));
    for (key, value) in about {
        line.insert((*key).to_owned(), json!(value));
    }
    // A failed write to standard error cannot be reported.
    let _ = writeln!(io::stderr(), "{}", Value::Object(line));
}

/// Logs the expected.
pub fn info(message: &str, about: &[(&str, &str)]) {
    write("info", message, about);
}

/// Logs a failure, or something unexpected.
pub fn warn(message: &str, about: &[(&str, &str)]) {
    write("warn", message, about);
}
