//! Groups failed checks by what probably made them fail: the known fault with which the same checks fail.

use super::Report;
use crate::check::result::Ended;
use std::collections::BTreeSet;

/// The table of faults, each with the check that is there for it and the others that fail with it.
const MATRIX: &str = include_str!("../../MATRIX.md");

/// Failed checks that probably have one cause.
#[derive(Debug, Eq, PartialEq)]
pub struct Cause {
    /// The check that is there for such a fault.
    pub check: String,
    /// What drivers with this fault did.
    pub fault: String,
    /// The other checks that fail with it.
    pub others: Vec<String>,
}

impl Report {
    /// The probable causes, those of most failures first. A failure that nothing else fails with is not among them.
    pub fn causes(&self) -> Vec<Cause> {
        let failed = self.finished.iter();
        let failed = failed.filter(|one| matches!(one.ended, Ended::Failed(_)));
        let chosen = self.finished.iter().map(|one| one.check.name).collect();
        causes(&chosen, failed.map(|one| one.check.name).collect())
    }
}

/// A row of the table: what stands for the fault, its own check, and the others.
fn rows() -> impl Iterator<Item = (&'static str, &'static str, Vec<&'static str>)> {
    MATRIX.lines().filter_map(|line| {
        let (start, checks) = line.strip_suffix(" |")?.rsplit_once(" | **")?;
        let (own, others) = checks.split_once("**")?;
        let fault = start.rsplit(" | ").next()?;
        Some((fault, own, others.split(", ").skip(1).collect()))
    })
}

fn causes(run: &BTreeSet<&str>, mut failed: BTreeSet<&str>) -> Vec<Cause> {
    let mut causes = Vec::new();
    loop {
        let mut best: Option<(&str, &str, Vec<&str>)> = None;
        for (fault, own, mut others) in rows().filter(|(_, own, _)| failed.contains(own)) {
            others.retain(|check| run.contains(check));
            let all = others.len();
            others.retain(|check| failed.contains(check));
            // Some checks find a fault by chance only.
            let is_like = others.len() * 4 >= all * 3;
            let most = best.as_ref().map_or(0, |(.., most)| most.len());
            if is_like && others.len() > most {
                best = Some((fault, own, others));
            }
        }
        let Some((fault, own, others)) = best else {
            return causes;
        };
        failed.retain(|check| *check != own && !others.contains(check));
        causes.push(Cause {
            check: own.to_owned(),
            fault: fault.to_owned(),
            others: others.into_iter().map(str::to_owned).collect(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks;

    #[test]
    fn what_fails_with_a_known_fault_has_one_cause() {
        let run: BTreeSet<_> = checks::all().map(|check| check.name).collect();
        let rows: Vec<_> = rows().collect();
        assert!(rows.len() > 100);
        for (_, own, others) in rows.into_iter().filter(|(.., others)| !others.is_empty()) {
            let failed: BTreeSet<_> = others.iter().copied().chain([own]).collect();
            let found = causes(&run, failed.clone());
            let first = found.first().unwrap_or_else(|| panic!("none of {own}"));
            let named: BTreeSet<_> = first.others.iter().map(String::as_str).collect();
            assert!(
                first.check == own || named.contains(own),
                "{own} is explained by {first:?}"
            );
        }
    }

    #[test]
    fn what_fails_alone_is_its_own_cause() {
        let run = checks::all().map(|check| check.name).collect();
        assert_eq!(causes(&run, ["cli.no-args"].into()), []);
        assert_eq!(causes(&run, BTreeSet::new()), []);
    }
}
