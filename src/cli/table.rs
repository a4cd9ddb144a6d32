//! Tables for users.

use super::{print, terminal};
use anyhow::Result;

/// Prints columns as wide as their content. A table may have no header.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> Result<()> {
    lines(header, rows)
        .iter()
        .try_for_each(|line| print(format_args!("{line}")))
}

fn lines(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    const GAP: usize = 3;
    let header: Vec<String> = header.iter().map(ToString::to_string).collect();
    let header = std::iter::once(&header).filter(|header| !header.is_empty());
    let all: Vec<Vec<String>> = header
        .chain(rows)
        .map(|row| row.iter().map(|cell| terminal::one_line(cell)).collect())
        .collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_on_one_line_and_as_wide_as_it_is_shown() {
        let rows = [["a\nb", "c"], ["d", "e"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(lines(&[], &rows), [r"a\u000ab   c", "d          e"]);
    }

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
}
