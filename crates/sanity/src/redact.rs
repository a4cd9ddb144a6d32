//! Makes text from drivers and commands safe to show: masks secrets and removes control characters.

use std::fmt::Write as _;

/// Replaces the secrets in `masks`.
pub fn masked(mut text: String, masks: &[String]) -> String {
    for mask in masks.iter().filter(|mask| !mask.is_empty()) {
        text = text.replace(mask.as_str(), "***");
    }
    text
}

/// Removes control characters, which a terminal would interpret. Keeps line breaks.
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

/// Makes a text from a driver or a command safe to show.
pub fn shown(text: String, masks: &[String]) -> String {
    printable(&masked(text, masks))
}

/// Quotes a word for a shell.
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
