//! Values that must not be seen.

use std::fmt;

/// A secret of a pod. It has no `Display`, and `Debug` shows nothing of it.
pub struct Secret(Vec<u8>);

impl Secret {
    /// The bytes. This is the one way out.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
