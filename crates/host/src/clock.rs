//! Wall clock time, and the time that has passed for certain.

use crate::Uuid;
use flexvol_sdk::{Error, Result};
use rustix::time::{ClockId, clock_gettime};
use std::{
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Point in time, in whole seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixTime(pub u64);

impl UnixTime {
    fn now() -> UnixTime {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        UnixTime(since.unwrap_or_default().as_secs())
    }
}

/// Point in time as a node knows it: by the wall clock, which may be wrong or be set, and by the time since boot, which
/// is reliable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Moment {
    /// Wall clock of the node; a time before 1970 counts as 1970.
    pub unix: UnixTime,
    /// Boot id: identifies the boot and with it the node.
    pub boot: Uuid,
    /// Whole seconds since boot, suspend included.
    pub uptime: u64,
}

impl Moment {
    /// Returns the current moment.
    ///
    /// # Errors
    /// When the kernel does not tell the boot id.
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

    /// Returns the least time that certainly passed until `later`.
    ///
    /// After another boot that is the uptime, and no more than the wall clocks tell: the storage may have come from
    /// another node.
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
        // The same boot: the wall clock does not matter.
        for unix in [0, 1_000_050, u64::MAX] {
            assert_eq!(passed(then, moment(unix, 1, 150)), 50);
        }
        assert_eq!(
            passed(moment(120, 1, 100), moment(1_700_000_000, 1, 160)),
            60
        );
        // Another boot: neither the wall clock nor the uptime alone counts.
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
