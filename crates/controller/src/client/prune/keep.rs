//! Rules of the pruner.

/// Rule that says which parts of a value are kept.
#[derive(Debug)]
pub(crate) enum Keep {
    /// The whole value, unchanged.
    All,
    /// All members of an object except these.
    But(&'static [&'static str]),
    /// A string of at most this many bytes as written, or a number.
    Text(usize),
    /// A time that can be understood. Users may write times of which nothing else can be made, such as of the year 10000
    /// (`metadata.managedFields`), and one would spoil the whole object.
    Time,
    /// A string that is kept regardless of the budget. An object has only few of them.
    Sure,
    /// A checksum of an object's members, all of which are strings: as much as tells whether they have changed, however
    /// long they are.
    Checksum,
    /// These members of an object, or of each object in an array. Strings and numbers are kept.
    Members(&'static [(&'static str, Keep)]),
    /// The members of an object whose names have this prefix, each by the rule.
    Begins(&'static str, &'static Keep),
    /// The members of an object whose names, as written, are these, each by the rule.
    Named(fn(&[u8]) -> bool, &'static Keep),
    /// These strings of an array, regardless of the budget.
    Words(&'static [&'static str]),
    /// Each element of an array, or each member of an object, by the rule, without a limit on their number.
    Each(&'static Keep),
    /// At most this many bytes of the value. The rest is dropped, and an object gets the mark [`TRUNCATED`].
    Within(usize, &'static Keep),
    /// Like `Within`, but a value that exceeds the limit is an error, because a part of it is useless.
    Whole(usize, &'static Keep),
}

impl Keep {
    /// A string of ordinary length, or a number.
    pub const WORD: Keep = Keep::Text(MAX_LENGTH);
}

/// Maximum length of a string, unless its rule says otherwise: no known value is longer. A longer string is replaced by
/// [`OVERLONG`], which shows its presence and equals no valid value.
pub(super) const MAX_LENGTH: usize = 1024;
pub(super) const OVERLONG: &[u8] = b"?";

/// Maximum number of elements. No known value has more.
pub(super) const MOST: usize = 256;

/// The member that marks a truncated object. No Kubernetes object has it.
pub(super) const TRUNCATED: &[u8] = b"\"cut\":true";

/// Maximum length of a number.
pub(super) const DIGITS: usize = 64;

/// The error for an object that exceeds this limit in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLarge(pub usize);

impl std::error::Error for TooLarge {}

impl std::fmt::Display for TooLarge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let most = self.0 >> 10;
        write!(
            f,
            "the object is too large: of one of its kind at most {most} KiB are read"
        )
    }
}

pub(super) fn begins(text: &[u8], head: &str) -> bool {
    text.starts_with(head.as_bytes())
}
