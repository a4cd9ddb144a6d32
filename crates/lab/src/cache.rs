//! The directories of the lab in the cache of its user, where what was made once is kept.

use anyhow::{Context, Result};
use std::{env, path::PathBuf};

/// A directory of the lab in the user's cache; it may not be there yet.
///
/// # Errors
/// When neither `XDG_CACHE_HOME` nor `HOME` is set.
pub fn directory(name: &str) -> Result<PathBuf> {
    let named = |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let base = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    Ok(base
        .context("find the cache directory: set HOME")?
        .join("flexvol-lab")
        .join(name))
}
