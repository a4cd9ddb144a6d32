//! The kernel's log, which says why a device or a file system failed under a test.

use std::{
    fs::{self, File},
    io::{ErrorKind, Read},
    os::unix::fs::OpenOptionsExt,
    time::Duration,
};

/// Number of lines that a failure shows.
const MOST: usize = 20;

/// Least severe level that is shown: warnings (include/linux/kern_levels.h).
const WARNING: u32 = 4;

/// Loop devices log each request to write zeros that their images' file system lacks, and do without it.
const USUAL: [&str; 2] = ["(WRITE_ZEROES)", "callbacks suppressed"];

/// Returns the present time of the log, since the boot.
pub(crate) fn now() -> Duration {
    let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = uptime.split(' ').next().and_then(|it| it.parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or_default())
}

/// Returns the last warnings since `start`, of whatever happened on this machine, each with a line break before it.
/// Empty where the log cannot be read.
pub(crate) fn warnings_since(start: Duration) -> String {
    let log = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/kmsg");
    let Ok(mut log) = log else {
        return String::new();
    };
    let mut record = [0; 8192];
    let mut lines = Vec::new();
    loop {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(length) => lines.extend(warning(&record[..length], start)),
            // Records that were overwritten meanwhile.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(_) => break,
        }
    }
    let skipped = lines.len().saturating_sub(MOST);
    lines.into_iter().skip(skipped).collect()
}

/// Parses a record: level, number, microseconds and flags, separated by commas, then a semicolon and the message
/// (Documentation/ABI/testing/dev-kmsg).
fn warning(record: &[u8], start: Duration) -> Option<String> {
    let record = String::from_utf8_lossy(record);
    let (head, text) = record.split_once(';')?;
    let mut fields = head.split(',');
    let level: u32 = fields.next()?.parse().ok()?;
    let time = Duration::from_micros(fields.nth(1)?.parse().ok()?);
    let text = text.lines().next()?;
    let is_shown =
        level % 8 <= WARNING && time >= start && !USUAL.iter().any(|usual| text.contains(usual));
    is_shown.then(|| format!("\nkernel: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_the_time_are_shown() {
        let start = Duration::from_secs(5);
        let shown = |record: &str| warning(record.as_bytes(), start);
        let error = "3,339,5140900,-;EXT4-fs error (device loop1)\n SUBSYSTEM=block\n";
        assert_eq!(
            shown(error).unwrap(),
            "\nkernel: EXT4-fs error (device loop1)"
        );
        assert_eq!(shown("6,339,5140900,-;EXT4-fs mounted\n"), None);
        assert_eq!(shown("3,339,4140900,-;EXT4-fs error\n"), None);
        assert_eq!(shown("3,1,5140900,-;op 0x9:(WRITE_ZEROES) flags 0\n"), None);
    }
}
