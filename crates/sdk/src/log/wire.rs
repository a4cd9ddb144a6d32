//! The encoding of a record as a datagram.

use std::{
    process,
    time::{SystemTime, UNIX_EPOCH},
};

pub(super) struct Record<'a> {
    pub program: &'a str,
    pub priority: log::Level,
    pub fields: &'a [(&'static str, Option<String>)],
    pub message: &'a str,
}

/// Longest text of a field. Longer texts are cut, so that a record always fits the socket's default buffer.
const MAX_LENGTH: usize = 16 << 10;

/// Encodes for journald's native protocol (systemd's docs/JOURNAL_NATIVE_PROTOCOL.md).
pub(super) fn journald(record: &Record<'_>) -> Vec<u8> {
    let mut datagram = Vec::new();
    let mut put = |name: &str, value: &str| {
        let value = cut(value);
        datagram.extend_from_slice(name.as_bytes());
        if value.contains('\n') {
            datagram.push(b'\n');
            let length = u64::try_from(value.len()).unwrap_or_default();
            datagram.extend_from_slice(&length.to_le_bytes());
        } else {
            datagram.push(b'=');
        }
        datagram.extend_from_slice(value.as_bytes());
        datagram.push(b'\n');
    };
    put("SYSLOG_IDENTIFIER", record.program);
    put("PRIORITY", &severity(record.priority).to_string());
    for (name, value) in record.fields {
        if let Some(value) = value {
            put(&format!("FLEXVOL_{}", name.to_ascii_uppercase()), value);
        }
    }
    put("MESSAGE", record.message);
    datagram
}

/// Encodes in the form that syslog(3) writes to /dev/log, without the local time, which daemons replace by their
/// own.
pub(super) fn syslog(record: &Record<'_>) -> Vec<u8> {
    const DAEMON: u8 = 3;
    let priority = DAEMON << 3 | severity(record.priority);
    let mut line = format!("<{priority}>{}[{}]:", record.program, process::id());
    for (name, value) in record.fields {
        if let Some(value) = value {
            line.push_str(&format!(" {name}={}", quoted(value)));
        }
    }
    line.push_str(&format!(" message={}", quoted(cut(record.message))));
    line.into_bytes()
}

fn quoted(value: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_.:,/+".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        value.to_owned()
    } else {
        format!("{value:?}")
    }
}

fn cut(text: &str) -> &str {
    let longest = MAX_LENGTH.min(text.len());
    let end = (0..=longest).rfind(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

/// Returns the severity's number in syslog.
fn severity(level: log::Level) -> u8 {
    match level {
        log::Level::Error => 3,
        log::Level::Warn => 4,
        log::Level::Info => 6,
        log::Level::Debug | log::Level::Trace => 7,
    }
}

/// Formats a time as RFC 3339 in UTC with milliseconds.
pub(super) fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    // Years begin on the first of March, so that a leap day is the last day of its year.
    let days = seconds / 86_400 + 719_468; // since 0000-03-01
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}.{:03}Z",
        seconds % 60,
        since.subsec_millis()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.007Z"),
            (951_782_399, "2000-02-28T23:59:59.007Z"),
            (951_782_400, "2000-02-29T00:00:00.007Z"),
            (1_709_251_199, "2024-02-29T23:59:59.007Z"),
            (1_795_219_200, "2026-11-21T00:00:00.007Z"),
            (4_107_542_399, "2100-02-28T23:59:59.007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.007Z"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_millis(7);
            assert_eq!(timestamp(time), text);
        }
    }

    #[test]
    fn both_forms_hold_the_same() {
        let record = Record {
            program: "disk",
            priority: log::Level::Error,
            fields: &[
                ("id", Some("7f3a9c".to_owned())),
                ("volume", None),
                ("kind", Some("a \"b\"".to_owned())),
            ],
            message: "one\ntwo",
        };
        assert_eq!(
            journald(&record),
            b"SYSLOG_IDENTIFIER=disk\nPRIORITY=3\nFLEXVOL_ID=7f3a9c\nFLEXVOL_KIND=a \"b\"\nMESSAGE\n\x07\0\0\0\0\0\0\0one\ntwo\n"
        );
        let line = format!(
            r#"<27>disk[{}]: id=7f3a9c kind="a \"b\"" message="one\ntwo""#,
            process::id()
        );
        assert_eq!(syslog(&record), line.as_bytes());
    }
}
