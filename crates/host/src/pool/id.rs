//! The id of a pool, which tells it from the empty directory that its disk is mounted on.

use super::link;
use crate::{
    fs::{
        attribute::{self, MARK},
        confine,
    },
    pool::blocks::nameless,
};
use flexvol_sdk::{Error, ErrorKind, Handle, Result};
use rustix::fs::OFlags;
use std::{
    fmt,
    fs::File,
    io::{self, Read as _},
};

/// The file with the pool's id.
pub(super) const ID_FILE: &str = ".flexvol-pool";

/// Version of a pool's layout: how its entries are named.
const VERSION: &str = "2";

/// 128 random bits that tell a pool from the empty directory its disk is mounted on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PoolId(Handle);

impl PoolId {
    /// Wraps 16 bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        PoolId(Handle::from_bytes(bytes))
    }

    /// Reads 32 lower-case hexadecimal digits.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for anything else.
    pub fn parse(text: &str) -> Result<Self> {
        Handle::parse(text).map(PoolId).map_err(|_| {
            Error::new(
                ErrorKind::Invalid,
                "a pool id is 32 lower-case hexadecimal digits",
            )
        })
    }

    pub(crate) fn random() -> Result<Self> {
        Handle::random().map(PoolId)
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

pub(super) fn read_id(root: &File) -> Result<Option<PoolId>> {
    let failed = |error: io::Error| Error::system("read the pool's id", error);
    let mut text = String::new();
    match confine::open(root, ID_FILE, OFlags::RDONLY | OFlags::NONBLOCK) {
        Ok(file) => file.take(128).read_to_string(&mut text).map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    parse_id(&text).map(Some)
}

fn parse_id(text: &str) -> Result<PoolId> {
    let words: Vec<_> = text.split_whitespace().collect();
    let wrong = |message: &'static str| {
        Error::new(ErrorKind::Configuration, message).because(format!("{ID_FILE} says {text:?}"))
    };
    match words[..] {
        ["flexvol-pool", VERSION, id] => {
            PoolId::parse(id).map_err(|_| wrong("the pool's id is damaged"))
        }
        // Version 1 named volumes by their handles; none would be found.
        ["flexvol-pool", "1", _] => Err(wrong(
            "the pool was made by an older flexvol; delete its volumes with that one, and the pool, and make another",
        )),
        ["flexvol-pool", _, ..] => Err(wrong("the pool was made by a newer flexvol")),
        _ => Err(wrong("the pool's id is damaged")),
    }
}

/// Writes a pool's id file. Returns `false` if another process did so first.
pub(super) fn name_pool(root: &File, id: PoolId) -> Result<bool> {
    let file = nameless(root)?;
    // Checks that extended attributes work, so that the first volume does not fail.
    attribute::write(&file, MARK, "pool")?;
    io::Write::write_all(
        &mut &file,
        format!("flexvol-pool {VERSION} {id}\n").as_bytes(),
    )
    .and_then(|()| file.sync_all())
    .map_err(|error| Error::system("write the pool's id", error))?;
    link(&file, root, ID_FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_file_of_another_version_or_shape_is_no_pool() {
        let id = "00112233445566778899aabbccddeeff";
        let text = format!("flexvol-pool 2 {id}\n");
        assert_eq!(parse_id(&text).unwrap().to_string(), id);
        for wrong in [
            String::new(),
            "flexvol-pool 2\n".to_owned(),
            format!("flexvol-pool 1 {id}\n"),
            format!("flexvol-pool 3 {id}\n"),
            format!("flexvol-pool 2 {id} more\n"),
            format!("flexvol-pool 2 {}\n", &id[1..]),
            format!("{id}\n"),
        ] {
            let error = parse_id(&wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration, "{wrong:?}");
        }
    }
}
