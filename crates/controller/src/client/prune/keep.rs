//! What of a value is kept.

/// What of a value is kept.
#[derive(Debug)]
pub(crate) enum Keep {
    /// All of it, as it is.
    All,
    /// All members of an object but these.
    But(&'static [&'static str]),
    /// A word of at most so many bytes as it is written, or a number.
    Text(usize),
    /// A word that is kept however much else there is of an object, which has but few of them.
    Sure,
    /// These members of an object, or of each object of an array. A word or a number is kept.
    Members(&'static [(&'static str, Keep)]),
    /// So of the members of an object whose names begin so.
    Begins(&'static str, &'static Keep),
    /// These words of an array, also however much else there is.
    Words(&'static [&'static str]),
    /// So of each element of an array, or of each member of an object, however many there are.
    Each(&'static Keep),
    /// At most so many bytes of it. What is beyond is dropped, and an object says so by [`CUT`].
    Within(usize, &'static Keep),
    /// The same, and if there is more, none of it: nothing that is read could do without.
    Whole(usize, &'static Keep),
}

impl Keep {
    /// A word or a number.
    pub const WORD: Keep = Keep::Text(MAX_LENGTH);
}

/// No word that this program understands is longer, unless it says so. Of longer ones [`OVERLONG`] is kept:
/// that there is one, which is like no other.
pub(super) const MAX_LENGTH: usize = 1024;
pub(super) const OVERLONG: &[u8] = b"?";

/// Nothing of which we know has more elements.
pub(super) const MOST: usize = 256;

/// The member, which no object of Kubernetes has, by which one says that not all of it was read.
pub(super) const CUT: &[u8] = b"\"cut\":true";

/// No number is longer.
pub(super) const DIGITS: usize = 64;

/// There was more of an object than this.
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
