//! How much of the machine other programs used while the bench ran.

use std::{fs, thread, time::Instant};

/// Share of the processors above which ratios are not judged.
const TOO_MUCH: f64 = 0.2;

/// The processor time used so far, and when that was.
pub struct Load {
    since: Instant,
    all: f64,
    own: f64,
}

impl Load {
    pub fn now() -> Self {
        Load {
            since: Instant::now(),
            all: all(),
            own: own(),
        }
    }

    /// The share of the processors that other programs, and the kernel for them, have used since then.
    pub fn of_others(&self) -> f64 {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let processors = u32::try_from(processors).map_or(1.0, f64::from);
        let others = (all() - self.all) - (own() - self.own);
        (others / self.since.elapsed().as_secs_f64() / processors).max(0.0)
    }
}

/// Whether other programs used so much that ratios mean nothing.
pub fn is_too_high(share: f64) -> bool {
    share > TOO_MUCH
}

/// The kernel counts a hundredth of a second as a tick, whatever its own clock is (`USER_HZ`).
const TICKS: f64 = 100.0;

/// Seconds that all processors were busy: the first line of /proc/stat without idle, iowait, guest and guest_nice,
/// of which the last two are in user and nice.
fn all() -> f64 {
    let text = fs::read_to_string("/proc/stat").expect("read /proc/stat");
    let fields = text.lines().next().expect("a line for all processors");
    let ticks = fields.split_whitespace().skip(1).map(number);
    let busy = ticks
        .enumerate()
        .filter(|(at, _)| ![3, 4].contains(at) && *at < 8);
    busy.map(|(_, ticks)| ticks).sum::<f64>() / TICKS
}

/// Seconds used by this process and by its children that have ended: utime, stime, cutime and cstime.
fn own() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").expect("read /proc/self/stat");
    let (_, fields) = text.rsplit_once(')').expect("the process' name");
    fields
        .split_whitespace()
        .skip(11)
        .take(4)
        .map(number)
        .sum::<f64>()
        / TICKS
}

fn number(text: &str) -> f64 {
    text.parse().expect("a number of ticks")
}
