//! Retention times in a configuration: a whole number and a unit.

use serde::Deserialize;
use std::{fmt, str::FromStr, time::Duration};

/// Units and their seconds, the largest first.
const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

/// A retention time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Keep {
    seconds: u64,
}

impl Keep {
    /// Returns the time as a [`Duration`].
    pub fn duration(self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

impl From<Duration> for Keep {
    fn from(duration: Duration) -> Keep {
        Keep {
            seconds: duration.as_secs(),
        }
    }
}

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let unit = text.chars().last()?;
            let (_, seconds) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
            let count: u64 = text.strip_suffix(unit)?.parse().ok()?;
            count.checked_mul(seconds)
        };
        match parse() {
            Some(seconds) => Ok(Keep { seconds }),
            None => Err(format!("{text:?} is not like 30m, 24h or 7d")),
        }
    }
}

impl TryFrom<String> for Keep {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |unit: &&(char, u64)| self.seconds > 0 && self.seconds.is_multiple_of(unit.1);
        let (name, seconds) = UNITS.iter().find(fits).unwrap_or(&('s', 1));
        write!(f, "{}{name}", self.seconds / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_as_the_same() {
        for text in ["0s", "90s", "30m", "36h", "7d"] {
            let keep: Keep = text.parse().unwrap();
            assert_eq!(keep.to_string(), text);
        }
        for (text, written) in [("24h", "1d"), ("0d", "0s")] {
            assert_eq!(text.parse::<Keep>().unwrap().to_string(), written);
        }
    }

    #[test]
    fn what_has_no_unit_or_no_number_is_refused() {
        for text in [
            "",
            "h",
            "24",
            "1.5h",
            "-1h",
            "1w",
            "99999999999999999999d",
            "24 h",
        ] {
            assert!(text.parse::<Keep>().is_err(), "{text}");
        }
    }
}
