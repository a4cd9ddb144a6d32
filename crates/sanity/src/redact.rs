//! What others wrote, as it may be shown: without secrets, and without what a terminal obeys.

use std::fmt::Write as _;

/// The text without the words that nobody should see.
pub fn masked(mut text: String, masks: &[String]) -> String {
    for mask in masks.iter().filter(|mask| !mask.is_empty()) {
        text = text.replace(mask.as_str(), "***");
    }
    text
}

/// The text without what a terminal obeys; lines stay lines.
pub fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\n' {
            printable.extend(c.escape_default());
        } else {
            printable.push(c);
        }
    }
    printable
}

/// What people may see of a text that others wrote.
pub fn shown(text: String, masks: &[String]) -> String {
    printable(&masked(text, masks))
}

/// A word as a shell reads it back.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+~".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else if word.chars().any(char::is_control) {
        let mut text = String::from("$'");
        for c in word.chars() {
            match c {
                '\\' | '\'' => text.extend(['\\', c]),
                c if c.is_control() => {
                    for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                        let _ = write!(text, "\\x{byte:02x}");
                    }
                }
                c => text.push(c),
            }
        }
        text + "'"
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
