//! What is needed of each kind of object that is read, and how much of one: nobody's objects cost more memory
//! than that, whatever is written into them. Of a kind that is not named only names are read: whoever reads
//! another one has to say what of it.

mod kinds;
#[cfg(test)]
mod tests;

use crate::client::prune::Keep;
use kinds::{KINDS, UNKNOWN};
use kube::Resource;

/// What of a kind is read.
struct Kind {
    group: &'static str,
    plural: &'static str,
    /// How many bytes of each object in a list.
    most: usize,
    one: Keep,
    list: Keep,
    watch: Keep,
}

/// How many bytes of the objects of a page are read, and never more objects than `watcher` asks for by itself.
const PAGE_BYTES: usize = 4 << 20;
const MOST_OF_PAGE: usize = 500;

/// In which way objects are asked for.
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

/// What is needed of an answer about objects of a kind.
pub(crate) fn needed(group: &str, plural: &str, asks: Asks) -> &'static Keep {
    let kind = kind(group, plural);
    match asks {
        Asks::One => &kind.one,
        Asks::List => &kind.list,
        Asks::Watch => &kind.watch,
    }
}

/// What is needed of an answer about something that has no kind.
pub(crate) fn unknown() -> &'static Keep {
    &UNKNOWN.one
}

/// How many objects of a kind are asked for at a time.
pub(crate) fn page<K: Resource<DynamicType = ()>>() -> u32 {
    let kind = kind(&K::group(&()), &K::plural(&()));
    let count = (PAGE_BYTES / kind.most).clamp(1, MOST_OF_PAGE);
    u32::try_from(count).unwrap_or(1)
}
