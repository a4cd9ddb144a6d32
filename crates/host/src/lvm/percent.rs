//! Fill levels, as LVM prints them.

use flexvol_sdk::Bytes;
use std::fmt;

/// Hundredths of a percent, the precision of LVM's reports (`%.2f` in lib/report/report.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(u16);

impl Percent {
    /// Whole percents.
    #[must_use]
    pub const fn of_hundred(percent: u8) -> Percent {
        Percent(percent as u16 * 100)
    }

    /// Parses `12.34`; `None` if LVM does not know the value and prints nothing.
    pub(super) fn parse(text: &str) -> Option<Percent> {
        let (whole, hundredths) = text.split_once('.').unwrap_or((text, "00"));
        let [tens, ones] = hundredths.as_bytes() else {
            return None;
        };
        let digit = |byte: &u8| byte.is_ascii_digit().then(|| u16::from(byte - b'0'));
        let hundredths = digit(tens)? * 10 + digit(ones)?;
        let whole: u16 = whole.parse().ok()?;
        Some(Percent(whole.checked_mul(100)?.checked_add(hundredths)?))
    }

    /// Returns the fill level of `size` with `free` left; empty if `size` is 0.
    pub(super) fn taken(free: u64, size: u64) -> Percent {
        let free = (u128::from(free) * 10_000).checked_div(size.into());
        let free = free.and_then(|free| u16::try_from(free).ok());
        Percent(10_000_u16.saturating_sub(free.unwrap_or(10_000)))
    }

    /// Returns the free part of `size`.
    pub(super) fn left_of(self, size: Bytes) -> Bytes {
        let left = 10_000_u128.saturating_sub(self.0.into());
        let left = u128::from(size.0) * left / 10_000;
        Bytes(u64::try_from(left).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02} %", self.0 / 100, self.0 % 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_are_read_as_lvm_prints_them() {
        for (text, printed) in [
            ("0.00", Some("0.00 %")),
            ("12.34", Some("12.34 %")),
            ("7", Some("7.00 %")),
            ("100.00", Some("100.00 %")),
            ("", None),
            ("12.3", None),
            ("12.345", None),
            ("-1.00", None),
            ("1.+5", None),
            ("70000.00", None),
        ] {
            let read = Percent::parse(text).map(|percent| percent.to_string());
            assert_eq!(read.as_deref(), printed, "{text:?}");
        }
    }

    #[test]
    fn what_is_not_free_is_taken() {
        for (free, size, taken) in [
            (0, 0, "0.00 %"),
            (0, 7, "100.00 %"),
            (1, 3, "66.67 %"),
            (9, 8, "0.00 %"),
            (u64::MAX, 1, "0.00 %"),
            (u64::MAX, u64::MAX, "0.00 %"),
        ] {
            assert_eq!(
                Percent::taken(free, size).to_string(),
                taken,
                "{free} of {size}"
            );
        }
    }

    #[test]
    fn what_was_written_to_a_thin_pool_is_not_given_again() {
        let size = Bytes(10_000 << 20);
        for (data, free) in [
            ("0.00", 10_000),
            ("25.00", 7_500),
            ("99.99", 1),
            ("100.00", 0),
            ("101.00", 0),
        ] {
            let left = Percent::parse(data).unwrap().left_of(size);
            assert_eq!(left.0 >> 20, free, "{data}");
        }
    }
}
