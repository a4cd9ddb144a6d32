//! The lab's directories in its user's cache.

use anyhow::{Context, Result};
use std::{env, path::PathBuf};

/// Returns a directory of the lab in the user's cache; it may not exist yet.
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
