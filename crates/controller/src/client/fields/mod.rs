//! Needed fields and size limits of each kind of object that is read, so that the content of an object cannot exhaust
//! memory. Only names are read of a kind that is not listed: a new kind has to be added here.

mod kinds;
#[cfg(test)]
mod tests;

use crate::client::prune::Keep;
use kinds::{KINDS, UNKNOWN};
use kube::Resource;

/// Rules of one kind.
struct Kind {
    group: &'static str,
    plural: &'static str,
    /// Maximum number of bytes of each object in a list.
    most: usize,
    one: Keep,
    list: Keep,
    watch: Keep,
}

/// Maximum number of bytes of a page, and of its objects: not more than `watcher` requests by default.
const PAGE_BYTES: usize = 4 << 20;
const MOST_OF_PAGE: usize = 500;

/// The way in which objects are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asks {
    One,
    List,
    Watch,
}

fn kind(group: &str, plural: &str) -> &'static Kind {
    let mut kinds = KINDS.iter();
    let kind = kinds.find(|kind| (kind.group, kind.plural) == (group, plural));
    kind.unwrap_or(&UNKNOWN)
}

/// Returns the rule for responses about a kind.
pub(crate) fn needed(group: &str, plural: &str, asks: Asks) -> &'static Keep {
    let kind = kind(group, plural);
    match asks {
        Asks::One => &kind.one,
        Asks::List => &kind.list,
        Asks::Watch => &kind.watch,
    }
}

/// Returns the rule for responses without a known kind.
pub(crate) fn unknown() -> &'static Keep {
    &UNKNOWN.one
}

/// Returns the page size of a kind.
pub(crate) fn page<K: Resource<DynamicType = ()>>() -> u32 {
    let kind = kind(&K::group(&()), &K::plural(&()));
    let count = (PAGE_BYTES / kind.most).clamp(1, MOST_OF_PAGE);
    u32::try_from(count).unwrap_or(1)
}
