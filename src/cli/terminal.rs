//! Escaping of foreign text on root's terminal, where control characters act as commands.
//!
//! Pods choose the paths on which they mount a volume, and so a part of the output.

use std::{
    fmt::Write,
    io::{self, IsTerminal},
    sync::OnceLock,
};

static IS_OUTPUT: OnceLock<bool> = OnceLock::new();

/// Whether standard output is a terminal. First called before a verb is given to a process whose output is a pipe.
pub fn is_output() -> bool {
    *IS_OUTPUT.get_or_init(|| io::stdout().is_terminal())
}

/// Escapes all control characters except newlines as JSON does, so that JSON keeps its meaning.
pub fn lines(text: &str) -> String {
    escaped(text, |c| c == '\n')
}

/// Escapes newlines too.
pub fn one_line(text: &str) -> String {
    escaped(text, |_| false)
}

fn escaped(text: &str, keeps: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && !keeps(c) {
            // Writing to a string cannot fail.
            let _ = write!(shown, "\\u{:04x}", u32::from(c));
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_and_not_obeyed() {
        let path = "/tmp/d\u{1b}]0;x\u{7}\u{1b}[2J\r\u{9b}31m\u{7f}\t\u{fc}/a\nb";
        let shown = format!(
            r"/tmp/d\u001b]0;x\u0007\u001b[2J\u000d\u009b31m\u007f\u0009{}/a",
            '\u{fc}'
        );
        assert_eq!(lines(path), format!("{shown}\nb"));
        assert_eq!(one_line(path), format!("{shown}\\u000ab"));
    }

    #[test]
    fn json_says_the_same_with_them() {
        let value = serde_json::json!({ "path": "/a\u{1b}\u{9b}\u{7f}\n\"\\" });
        let shown = lines(&format!("{value:#}"));
        assert!(!shown.contains(|c: char| c.is_control() && c != '\n'));
        let read: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(read, value);
    }
}
