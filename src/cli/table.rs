//! Tables and sizes as people read them.

use super::print;
use anyhow::Result;
use flexvol_storage::sdk::Bytes;

/// Prints columns as wide as they must be. A table may have no header.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> Result<()> {
    lines(header, rows)
        .iter()
        .try_for_each(|line| print(format_args!("{line}")))
}

fn lines(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    const GAP: usize = 3;
    let header: Vec<String> = header.iter().map(ToString::to_string).collect();
    let header = std::iter::once(&header).filter(|header| !header.is_empty());
    let all: Vec<&Vec<String>> = header.chain(rows).collect();
    let columns = all.iter().map(|row| row.len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let cells = all.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0) + GAP
        })
        .collect();
    all.iter()
        .map(|row| {
            let cells = row.iter().zip(&widths);
            let line: String = cells
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            line.trim_end().to_owned()
        })
        .collect()
}

/// A size in the largest unit it reaches, with one digit behind the point unless it is whole,
/// rounded down: what is shown is there.
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
    fn columns_line_up_and_nothing_trails() {
        let rows = [
            vec!["a".to_owned(), "1Gi".to_owned()],
            vec!["longer".to_owned(), "-".to_owned()],
        ];
        assert_eq!(
            lines(&["NAME", "SIZE"], &rows),
            ["NAME     SIZE", "a        1Gi", "longer   -"]
        );
    }

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
