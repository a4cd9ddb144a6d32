//! Detects when the machine lacks what every driver needs, so that failures are not blamed on the driver.

use crate::run::Run;
use std::{fs, path::Path};

const MIB: u64 = 1 << 20;

/// Returns what the machine lacks at this moment, in words; none if nothing.
pub fn trouble(run: &Run) -> Option<String> {
    for place in [run.scratch.as_path(), Path::new("/tmp"), Path::new("/run")] {
        if let Ok(found) = nix::sys::statvfs::statvfs(place)
            && found.blocks_available() * found.fragment_size() < 4 * MIB
        {
            return Some(format!("{} is full", place.display()));
        }
    }
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes =
        available.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok());
    match kibibytes {
        Some(kibibytes) if kibibytes < 64 << 10 => Some("there is no more memory".to_owned()),
        _ => None,
    }
}
