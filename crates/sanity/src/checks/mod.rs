//! The checks, one file a group.

mod att;
mod cli;
mod con;
mod det;
mod env;
mod exp;
mod fmt;
mod gvn;
mod hang;
mod hostile;
mod init;
mod kill;
mod life;
mod mnt;
mod out;
mod secrets;
mod umt;

use crate::check::Check;

/// All of them, in the order of the list.
pub fn all() -> impl Iterator<Item = &'static Check> {
    [
        out::CHECKS,
        secrets::CHECKS,
        hang::CHECKS,
        env::CHECKS,
        cli::CHECKS,
        hostile::CHECKS,
        init::CHECKS,
        gvn::CHECKS,
        att::CHECKS,
        det::CHECKS,
        mnt::CHECKS,
        umt::CHECKS,
        fmt::CHECKS,
        exp::CHECKS,
        con::CHECKS,
        kill::CHECKS,
        life::CHECKS,
    ]
    .into_iter()
    .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_texts_are_there() {
        let names: BTreeSet<_> = all().map(|check| check.name).collect();
        assert_eq!(names.len(), all().count());
        for check in all() {
            for text in [check.what, check.why, check.broke, check.mend, check.source] {
                assert!(text.len() > 8, "{} lacks a text", check.name);
            }
        }
    }
}
