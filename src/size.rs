//! Sizes: for people, and from them.

use flexvol_storage::sdk::{Bytes, Error, ErrorKind};

/// Formats a size for people: in the largest unit that it reaches, with one decimal unless it is whole.
pub fn size(bytes: Bytes) -> String {
    format!("{bytes:#}")
}

/// Parses the size of a volume, which is not zero.
pub fn requested(text: &str) -> Result<Bytes, Error> {
    match text.parse()? {
        Bytes(0) => Err(Error::new(
            ErrorKind::Invalid,
            "a volume has more than 0; say a size such as 10Gi",
        )),
        bytes => Ok(bytes),
    }
}
