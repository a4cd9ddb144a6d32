//! What time it is, and how much of it has passed for sure.

use crate::Uuid;
use flexvol_sdk::{Error, Result};
use rustix::time::{ClockId, clock_gettime};
use std::{
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A moment, in whole seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixTime(pub u64);

impl UnixTime {
    fn now() -> UnixTime {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        UnixTime(since.unwrap_or_default().as_secs())
    }
}

/// A moment as a node knows it: by the clock on its wall, which may be wrong and may be set, and by
/// the time since it was started, which is neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Moment {
    /// As the node's clock has it; a clock before 1970 is taken for 1970.
    pub unix: UnixTime,
    /// Which start of which node.
    pub boot: Uuid,
    /// Whole seconds since that start, sleep included.
    pub uptime: u64,
}

impl Moment {
    /// This one.
    ///
    /// # Errors
    /// When the kernel does not tell which start of the node this is.
    pub fn now() -> Result<Moment> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_err(|error| Error::system("ask which start of the node this is", error))?;
        let uptime = clock_gettime(ClockId::Boottime).tv_sec;
        Ok(Moment {
            unix: UnixTime::now(),
            boot: Uuid::parse(boot.trim_end())?,
            uptime: u64::try_from(uptime).unwrap_or_default(),
        })
    }

    /// The time that passed for sure until `later`. After another start of the node that is the time
    /// since then, and no more than the clock tells: the storage may have come from another node.
    #[must_use]
    pub fn passed_until(&self, later: &Moment) -> Duration {
        Duration::from_secs(if self.boot == later.boot {
            later.uptime.saturating_sub(self.uptime)
        } else {
            let told = later.unix.0.saturating_sub(self.unix.0);
            told.min(later.uptime)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(unix: u64, boot: u8, uptime: u64) -> Moment {
        Moment {
            unix: UnixTime(unix),
            boot: Uuid::from_bytes([boot; 16]),
            uptime,
        }
    }

    #[test]
    fn a_clock_that_is_set_makes_no_time_pass() {
        let passed = |from: Moment, to: Moment| from.passed_until(&to).as_secs();
        let then = moment(1_000_000, 1, 100);
        // The same start: the clock does not matter.
        for unix in [0, 1_000_050, u64::MAX] {
            assert_eq!(passed(then, moment(unix, 1, 150)), 50);
        }
        assert_eq!(
            passed(moment(120, 1, 100), moment(1_700_000_000, 1, 160)),
            60
        );
        // Another one: neither the clock nor the uptime alone.
        assert_eq!(passed(then, moment(1_700_000_000, 2, 30)), 30);
        assert_eq!(passed(then, moment(1_000_200, 2, 8_640_000)), 200);
        assert_eq!(passed(then, moment(120, 2, 30)), 0);
        assert_eq!(passed(then, moment(1_000_000, 1, 50)), 0);
    }

    #[test]
    fn this_moment_is_told_and_passes() {
        let (first, second) = (Moment::now().unwrap(), Moment::now().unwrap());
        assert_eq!(first.boot, second.boot);
        assert!(first.uptime > 0 && first.passed_until(&second) < Duration::from_secs(60));
    }
}
