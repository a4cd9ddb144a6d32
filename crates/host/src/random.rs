//! Random numbers for names and samples.

use flexvol_sdk::{Error, Result};
use rustix::rand::{GetRandomFlags, getrandom};

/// Returns a uniformly distributed number.
pub(crate) fn number() -> Result<u64> {
    let [a, b, c, d, e, f, g, h, ..] = bytes()?;
    Ok(u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
}

/// Returns random bytes. Reads of up to 256 bytes are never short (random(7)).
pub(crate) fn bytes() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|error| Error::system("get random numbers", error))?;
    Ok(bytes)
}
