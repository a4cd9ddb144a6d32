//! Quantities: compared with another exact arithmetic where that suffices, and unchanged if displayed and parsed.
#![no_main]

use flexvol_fuzz::within;
use flexvol_sdk::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    // The message shows the text, in which a byte may be escaped as ten characters.
    let read = within(4096 + 32 * data.len(), || text.parse::<Bytes>()).ok();
    if let Some(expected) = exactly(text) {
        assert_eq!(read.map(|bytes| bytes.0), expected, "{text:?}");
    }
    if let Some(bytes) = read {
        assert_eq!(
            bytes.to_string().parse::<Bytes>().ok(),
            Some(bytes),
            "{text:?}"
        );
    }
});

/// The value of the text, `Some(None)` if it has none, or `None` if 128 bits do not suffice to tell.
fn exactly(text: &str) -> Option<Option<u64>> {
    const SUFFIXES: [(&str, u32, i32); 16] = [
        ("", 0, 0),
        ("n", 0, -9),
        ("u", 0, -6),
        ("m", 0, -3),
        ("k", 0, 3),
        ("M", 0, 6),
        ("G", 0, 9),
        ("T", 0, 12),
        ("P", 0, 15),
        ("E", 0, 18),
        ("Ki", 10, 0),
        ("Mi", 20, 0),
        ("Gi", 30, 0),
        ("Ti", 40, 0),
        ("Pi", 50, 0),
        ("Ei", 60, 0),
    ];
    let text = text.strip_prefix('+').unwrap_or(text);
    let number = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let (number, suffix) = text.split_at(text.len() - number.len());
    let digits = number.replacen('.', "", 1);
    if digits.is_empty() || digits.contains('.') {
        return Some(None);
    }
    let known = SUFFIXES.iter().find(|(known, ..)| *known == suffix);
    let (shift, exponent) = match (known, suffix.strip_prefix(['e', 'E'])) {
        (Some((_, shift, exponent)), _) => (*shift, *exponent),
        (None, Some(exponent)) => match exponent.parse::<i32>() {
            Ok(exponent) => (0, exponent),
            Err(_) => return Some(None),
        },
        (None, None) => return Some(None),
    };
    if digits.len() > 18 || exponent.abs() > 20 {
        return None;
    }
    let point = number.find('.').map_or(0, |point| number.len() - point - 1);
    let power = |exponent: i32| 10u128.pow(exponent.max(0).unsigned_abs());
    let value = digits.parse::<u128>().ok()? << shift;
    let whole = (value * power(exponent)).div_ceil(10u128.pow(point as u32) * power(-exponent));
    Some(u64::try_from(whole).ok())
}
