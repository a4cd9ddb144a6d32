//! All checks, one file for each group.

mod arguments;
mod attach;
mod capacity;
mod concurrency;
mod delete;
mod detach;
mod environment;
mod expand;
mod format;
mod hang;
mod hostile;
mod hostile_provision;
mod init;
mod kill;
mod lifecycle;
mod mount;
mod output;
mod provision;
mod secrets;
mod unmount;
mod volume_name;

use crate::check::Check;

/// Returns all checks, in the order of `flexvol-sanity list`.
pub fn all() -> impl Iterator<Item = &'static Check> {
    [
        output::CHECKS,
        secrets::CHECKS,
        hang::CHECKS,
        environment::CHECKS,
        arguments::CHECKS,
        hostile::CHECKS,
        init::CHECKS,
        volume_name::CHECKS,
        attach::CHECKS,
        detach::CHECKS,
        mount::CHECKS,
        unmount::CHECKS,
        format::CHECKS,
        expand::CHECKS,
        provision::CHECKS,
        delete::CHECKS,
        capacity::CHECKS,
        concurrency::CHECKS,
        kill::CHECKS,
        lifecycle::CHECKS,
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
