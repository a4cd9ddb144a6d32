//! Suggestions for a word that is neither verb nor callout.

use super::VERBS;
use flexvol_storage::sdk::Callout;
use std::{
    ffi::OsStr,
    io::{self, IsTerminal, Write},
};

/// Prints the nearest known word, but only on a terminal. Callers have no terminal, and text on standard error
/// would corrupt the JSON line for them.
pub fn suggest(word: &OsStr) {
    let Some(word) = word.to_str().filter(|_| io::stderr().is_terminal()) else {
        return;
    };
    let known = VERBS.iter().chain(&Callout::NAMES);
    let nearest = known
        .map(|known| (distance(word, known), known))
        .min_by_key(|(distance, _)| *distance);
    let mut stderr = io::stderr();
    // If the terminal is gone, nobody needs the advice.
    let _ = match nearest {
        Some((distance, known)) if distance <= 2 => {
            writeln!(
                stderr,
                "flexvol: there is no {word:?}; did you mean {known:?}?"
            )
        }
        _ => writeln!(
            stderr,
            "flexvol: there is no {word:?}; see `flexvol --help`"
        ),
    };
}

/// Number of letters to insert, remove or replace (Levenshtein distance).
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn a_letter_more_or_less_is_near() {
        assert_eq!(distance("expandsf", "expandfs"), 2);
        assert_eq!(distance("instal", "install"), 1);
        assert_eq!(distance("mount", "mount"), 0);
        assert_eq!(distance("", "init"), 4);
    }
}
