//! Sizes in human-readable form.

use flexvol_storage::sdk::Bytes;

/// Formats a size in the largest unit that it reaches, with one decimal unless it is whole. Rounds down, so that at
/// least that much is there.
pub fn size(bytes: Bytes) -> String {
    let Some((unit, name)) = [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")]
        .into_iter()
        .find(|(shift, _)| bytes.0 >> shift > 0)
    else {
        return bytes.to_string();
    };
    let (whole, rest) = (bytes.0 >> unit, bytes.0 & ((1 << unit) - 1));
    match (rest * 10) >> unit {
        0 if rest == 0 => format!("{whole}{name}"),
        tenths => format!("{whole}.{tenths}{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short_and_never_too_large() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1 << 30, "1Gi"),
            (3 << 29, "1.5Gi"),
            ((1 << 30) - 1, "1023.9Mi"),
            ((1 << 30) + 1, "1.0Gi"),
            (300 << 20, "300Mi"),
        ] {
            assert_eq!(size(Bytes(bytes)), text);
        }
    }
}
