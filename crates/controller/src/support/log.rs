//! The log: a line of JSON an event, on standard error.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// Writes what happened, with what it happened to.
pub fn write(level: &str, message: &str, about: &[(&str, &str)]) {
    let mut line = Map::new();
    line.insert("time".to_owned(), json!(Timestamp::now().to_string()));
    line.insert("level".to_owned(), json!(level));
    line.insert("message".to_owned(), json!(message));
    for (key, value) in about {
        line.insert((*key).to_owned(), json!(value));
    }
    // Nobody to tell it.
    let _ = writeln!(io::stderr(), "{}", Value::Object(line));
}

/// Something that went as it should.
pub fn info(message: &str, about: &[(&str, &str)]) {
    write("info", message, about);
}

/// Something that did not.
pub fn warn(message: &str, about: &[(&str, &str)]) {
    write("warn", message, about);
}
