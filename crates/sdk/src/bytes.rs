//! A number of bytes that cannot be mistaken for sectors, blocks or mebibytes.

use std::fmt;

/// A size or a position in bytes.
///
/// `Display` writes the largest binary unit that divides it exactly, in the form Kubernetes
/// uses for quantities, and plain bytes otherwise: `500Mi`, `1Ti`, `524288001`.
///
/// `{:#}` writes it for people, as messages do: in the largest unit that it reaches, with one decimal unless it is
/// whole, and rounded down, so that at least that much is there: `1.5Gi`, `500Mi`, `17 bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// 1 KiB.
    pub const KIB: Bytes = Bytes(1 << 10);
    /// 1 MiB; volume sizes are rounded up to multiples of it.
    pub const MIB: Bytes = Bytes(1 << 20);
    /// 1 GiB.
    pub const GIB: Bytes = Bytes(1 << 30);

    /// Rounds up to a multiple of `unit`; `None` if the result exceeds `u64::MAX`.
    #[must_use]
    pub fn round_up(self, unit: Bytes) -> Option<Bytes> {
        self.0.checked_next_multiple_of(unit.0).map(Bytes)
    }

    /// Subtracts `other`, or returns zero if `other` is larger.
    #[must_use]
    pub fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 6] = [
            (60, "Ei"),
            (50, "Pi"),
            (40, "Ti"),
            (30, "Gi"),
            (20, "Mi"),
            (10, "Ki"),
        ];
        if f.alternate() {
            let unit = UNITS.into_iter().find(|(shift, _)| self.0 >> shift > 0);
            let Some((shift, suffix)) = unit else {
                return write!(f, "{}{}", self.0, if self.0 == 0 { "" } else { " bytes" });
            };
            let (whole, rest) = (self.0 >> shift, self.0 & ((1 << shift) - 1));
            return match rest {
                0 => write!(f, "{whole}{suffix}"),
                rest => {
                    let tenths = (u128::from(rest) * 10) >> shift;
                    write!(f, "{whole}.{tenths}{suffix}")
                }
            };
        }
        for (shift, suffix) in UNITS {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{suffix}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_for_people_are_short_and_never_too_large() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023 bytes"),
            (1 << 30, "1Gi"),
            (3 << 29, "1.5Gi"),
            ((1 << 30) - 1, "1023.9Mi"),
            ((1 << 30) + 1, "1.0Gi"),
            (12_417_351_068, "11.5Gi"),
            (1 << 50, "1Pi"),
            (u64::MAX, "15.9Ei"),
        ] {
            assert_eq!(format!("{:#}", Bytes(bytes)), text);
        }
    }

    #[test]
    fn sizes_read_like_kubernetes_quantities() {
        for (bytes, text) in [
            (0, "0"),
            (1, "1"),
            (1024, "1Ki"),
            (500 << 20, "500Mi"),
            (1536 << 20, "1536Mi"),
            (1 << 40, "1Ti"),
            (524_288_001, "524288001"),
            (u64::MAX, "18446744073709551615"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn rounding_up_reports_overflow() {
        assert_eq!(Bytes(1).round_up(Bytes::MIB), Some(Bytes::MIB));
        assert_eq!(Bytes::MIB.round_up(Bytes::MIB), Some(Bytes::MIB));
        assert_eq!(Bytes(u64::MAX).round_up(Bytes::MIB), None);
    }
}
