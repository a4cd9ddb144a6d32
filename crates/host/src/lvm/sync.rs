//! Flushes of disk caches.

use crate::{deadline::Deadline, sys::disk_probe::DiskProbe};
use flexvol_sdk::{Error, ErrorKind, Result, leftover::LeftoverNote};
use std::{ffi::CString, fs, io, os::unix::fs::MetadataExt, path::Path, time::Duration};

/// Timeout of a flush. A disk with a full cache needs seconds.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Flushes the caches of a group's disks, all in parallel. A disk at which an earlier flush still waits is not asked again:
/// another process would only wait beside that one.
///
/// # Errors
/// When a disk may not have flushed; [`ErrorKind::TimedOut`] when it did not answer.
pub fn sync(disks: &[String]) -> Result<()> {
    sync_within(disks, TIMEOUT)
}

fn sync_within(disks: &[String], patience: Duration) -> Result<()> {
    let failed = |disk: &str, error: io::Error| {
        Error::system(
            &format!("sync the disk {} of the volume group", name(disk)),
            error,
        )
    };
    let start = |disk: &String| {
        let left = leftover_note(disk);
        if let Some(process) = left.process() {
            let earlier = format!("an earlier flush, process {process}, is still there");
            return Err(silent(disk, patience).because(earlier));
        }
        let flush = CString::new(disk.as_str()).map_err(io::Error::from);
        let flush = flush.and_then(|path| DiskProbe::sync(&path));
        flush
            .map(|flush| (flush, left))
            .map_err(|error| failed(disk, error))
    };
    let flushes: Vec<_> = disks.iter().map(start).collect();
    let mut deadline = Deadline::after(patience);
    let mut all = Ok(());
    for (disk, flush) in disks.iter().zip(flushes) {
        let synced = flush.and_then(|(flush, left)| match flush.end(&mut deadline, &left) {
            Ok(Some(ended)) => ended.map_err(|error| failed(disk, error.into())),
            Ok(None) => Err(silent(disk, patience)),
            Err(error) => Err(failed(disk, error)),
        });
        all = all.and(synced);
    }
    all
}

/// Returns the note of a flush of this disk. While a flush waits, no other disk gets the number.
fn leftover_note(disk: &str) -> LeftoverNote {
    let number = fs::metadata(disk).map(|disk| disk.rdev()).ok();
    LeftoverNote::of(("sync", number, disk))
}

fn silent(disk: &str, patience: Duration) -> Error {
    Error::new(
        ErrorKind::TimedOut,
        format!(
            "cannot sync the disk {} of the volume group: it did not answer within {} s; look into the kernel's log on the node",
            name(disk),
            patience.as_secs()
        ),
    )
}

fn name(disk: &str) -> std::path::Display<'_> {
    Path::new(disk)
        .file_name()
        .map_or(Path::new(disk), Path::new)
        .display()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, time::Instant};

    #[test]
    fn a_disk_that_does_not_answer_is_named_and_not_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let [file, pipe] = ["answers", "silent"].map(|name| place.path().join(name));
        fs::write(&file, "text").unwrap();
        // Opening a FIFO waits for the other end.
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        let [file, pipe, missing] =
            [file, pipe, place.path().join("missing")].map(|path| path.display().to_string());
        sync_within(std::slice::from_ref(&file), TIMEOUT).unwrap();

        let started = Instant::now();
        let disks = [file, pipe, missing.clone()];
        let error = sync_within(&disks, Duration::from_secs(1)).unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(20));
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let said = error.to_string();
        assert!(
            said.contains("the disk silent of") && said.contains("within 1 s"),
            "{said}"
        );
        let error = sync_within(&[missing], TIMEOUT).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}
