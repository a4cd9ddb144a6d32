//! Kubernetes quantities as sizes: `10Gi`, `1500m`, `1e3`, `0.5Ti`.

use crate::{Bytes, Error, ErrorKind, Result};
use serde::{Deserialize, Deserializer, de};
use std::{fmt, str::FromStr};

/// The multiplier of a quantity.
enum Scale {
    /// A power of ten: decimal suffixes and exponents.
    Ten(i32),
    /// A power of two: `Ki` to `Ei`.
    Two(u32),
}

/// Returns the multiplier of a suffix of apimachinery's `resource.Quantity` (pkg/api/resource/suffix.go).
fn scale(suffix: &str) -> Option<Scale> {
    Some(match suffix {
        "n" => Scale::Ten(-9),
        "u" => Scale::Ten(-6),
        "m" => Scale::Ten(-3),
        "" => Scale::Ten(0),
        "k" => Scale::Ten(3),
        "M" => Scale::Ten(6),
        "G" => Scale::Ten(9),
        "T" => Scale::Ten(12),
        "P" => Scale::Ten(15),
        "E" => Scale::Ten(18),
        "Ki" => Scale::Two(10),
        "Mi" => Scale::Two(20),
        "Gi" => Scale::Two(30),
        "Ti" => Scale::Two(40),
        "Pi" => Scale::Two(50),
        "Ei" => Scale::Two(60),
        exponent => Scale::Ten(exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    })
}

impl FromStr for Bytes {
    type Err = Error;

    /// Parses a Kubernetes quantity exactly, then rounds up to whole bytes as `Quantity.Value()` does.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for text that is no quantity, for negative ones, and for those above `u64::MAX`,
    /// which Kubernetes would silently lower to its own maximum.
    fn from_str(text: &str) -> Result<Self> {
        read(text).map_err(|why| Error::new(ErrorKind::Invalid, format!("size {text:?} {}", why.0)))
    }
}

/// The reason why a text is no size, as the rest of a sentence that begins with the text.
struct Refusal(&'static str);

fn read(text: &str) -> Result<Bytes, Refusal> {
    if text.starts_with('-') {
        return Err(Refusal("is negative"));
    }
    let number = text.strip_prefix('+').unwrap_or(text);
    let end = number
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(number.len());
    let (number, suffix) = number.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: Vec<u8> = [whole, fraction]
        .concat()
        .bytes()
        .map(|digit| digit.wrapping_sub(b'0'))
        .collect();
    if digits.is_empty() || digits.iter().any(|&digit| digit > 9) {
        return Err(Refusal("is not a quantity such as 10Gi"));
    }
    match scale(suffix) {
        None => return Err(Refusal("is not a quantity such as 10Gi")),
        Some(Scale::Ten(exponent)) => decimal(&digits, whole.len(), exponent),
        Some(Scale::Two(shift)) => binary(&digits, whole.len(), shift),
    }
    .map(Bytes)
    .ok_or(Refusal("is larger than any volume"))
}

/// Computes `digits`, with the point after the first `whole` of them, times ten to `exponent`, rounded up.
fn decimal(digits: &[u8], whole: usize, exponent: i32) -> Option<u64> {
    let zeros = digits.iter().take_while(|&&digit| digit == 0).count();
    let digits = &digits[zeros..];
    if digits.is_empty() {
        return Some(0);
    }
    let point = i64::try_from(whole).ok()? - i64::try_from(zeros).ok()? + i64::from(exponent);
    let Ok(point) = usize::try_from(point) else {
        return Some(1); // below the first byte, above zero
    };
    if point > 20 {
        return None; // u64::MAX has 20 digits
    }
    let value = (0..point).try_fold(0u64, |value, place| {
        let digit = digits.get(place).copied().unwrap_or(0);
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })?;
    let rest = digits.get(point..).unwrap_or_default();
    value.checked_add(u64::from(rest.iter().any(|&digit| digit != 0)))
}

/// Computes `digits`, with the point after the first `whole` of them, times two to `shift`, rounded up.
fn binary(digits: &[u8], whole: usize, shift: u32) -> Option<u64> {
    let (whole, fraction) = digits.split_at(whole);
    let value = whole.iter().try_fold(0u64, |value, &digit| {
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })?;
    // Long multiplication from the last digit: the final carry is the number of whole bytes.
    let mut carry = 0u128;
    let mut rest = false;
    for &digit in fraction.iter().rev() {
        carry += u128::from(digit) << shift;
        rest |= !carry.is_multiple_of(10);
        carry /= 10;
    }
    let fraction = u64::try_from(carry).ok()? + u64::from(rest);
    value.checked_mul(1 << shift)?.checked_add(fraction)
}

impl<'de> Deserialize<'de> for Bytes {
    /// Accepts a quantity, or a plain number if the format has numbers.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as 10Gi")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                // The message omits the text, because values of options are not repeated.
                read(text).map_err(|why| E::custom(format_args!("the size {}", why.0)))
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Bytes, E> {
                u64::try_from(bytes)
                    .map(Bytes)
                    .map_err(|_| E::custom("a size cannot be negative"))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_are_exact_and_rounded_up() {
        for (text, bytes) in [
            ("0", 0),
            ("0n", 0),
            ("0.0Gi", 0),
            ("1", 1),
            ("+1", 1),
            ("1.", 1),
            (".5Ki", 512),
            ("100m", 1),
            ("1001m", 2),
            ("1n", 1),
            ("1000000000n", 1),
            ("1000000u", 1),
            ("1k", 1000),
            ("1.5Gi", 1_610_612_736),
            ("1E", 1_000_000_000_000_000_000),
            ("12E", 12_000_000_000_000_000_000),
            ("1E3", 1000),
            ("1e3", 1000),
            ("1E+3", 1000),
            ("1500e-3", 2),
            ("1e-999999999", 1),
            ("0e999999999", 0),
            ("1Ei", 1 << 60),
            ("15.999Ei", 18_445_591_152_204_944_770),
            ("0.1Ki", 103),
            ("0.00000000000000000000000000000000000001Ei", 1),
            ("000000000000000000000000000001Ki", 1024),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse::<Bytes>().unwrap(), Bytes(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            ".",
            "+",
            "-",
            "-1",
            "-0",
            "--1",
            "++1",
            "1.2.3",
            "Gi",
            "1Xi",
            "1ki",
            "1K",
            "1g",
            "1GB",
            "1 Gi",
            " 1",
            "1e",
            "1e1.5",
            "1Kii",
            "0x10",
            "1_000",
            "١",
            "1Gi\n",
            "inf",
            "18446744073709551616",
            "16Ei",
            "19E",
            "1e20",
            "1e999999999",
            "1e99999999999",
        ] {
            assert!(
                text.parse::<Bytes>().is_err(),
                "{text:?} was taken for a size"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_displayed_reads_back(bytes: u64) {
            prop_assert_eq!(Bytes(bytes).to_string().parse::<Bytes>().unwrap(), Bytes(bytes));
        }

        #[test]
        fn shifted_units_read_back(value in 0u64..1 << 20, shift in 0u32..5) {
            let suffix = ["Ki", "Mi", "Gi", "Ti", "Pi"][shift as usize];
            let text = format!("{value}{suffix}");
            let bytes = u128::from(value) << ((shift + 1) * 10);
            prop_assert_eq!(text.parse::<Bytes>().ok().map(|b| u128::from(b.0)), u64::try_from(bytes).ok().map(u128::from));
        }

        #[test]
        fn fractions_are_ceilings(whole in 0u64..1000, thousandths in 0u64..1000, shift in 0u32..3) {
            let (suffix, unit) = [("", 1), ("Ki", 1 << 10), ("Mi", 1 << 20)][shift as usize];
            let text = format!("{whole}.{thousandths:03}{suffix}");
            let exact = ((whole * 1000 + thousandths) * unit).div_ceil(1000);
            prop_assert_eq!(text.parse::<Bytes>().unwrap(), Bytes(exact));
        }

        #[test]
        fn nothing_panics(text in "[-+]?[0-9.]{0,40}([eE][-+]?[0-9]{0,12}|[numkMGTPEi]{0,3})|.*") {
            let _ = text.parse::<Bytes>();
        }
    }
}
