//! Random numbers for identities and samples.

use flexvol_sdk::{Error, Handle, Result};
use rustix::rand::{GetRandomFlags, getrandom};

/// A new handle: 128 bits from the kernel's random number generator.
///
/// # Errors
/// When `getrandom(2)` fails.
pub fn handle() -> Result<Handle> {
    bytes().map(Handle::from_bytes)
}

/// Any number, each as likely as every other.
pub(crate) fn number() -> Result<u64> {
    let [a, b, c, d, e, f, g, h, ..] = bytes()?;
    Ok(u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
}

/// Up to 256 bytes come whole or not at all (random(7)).
pub(crate) fn bytes() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|error| Error::system("get random numbers", error))?;
    Ok(bytes)
}
