//! Helm, built from its Go module and cached.

use crate::{cache, command::run};
use anyhow::{Context, Result};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

/// The release that renders the chart. Another one may format manifests differently.
const VERSION: &str = "v3.22.0";

/// Returns the path of Helm's executable. Builds it if needed.
///
/// # Errors
/// When the module cannot be downloaded or built.
pub fn program() -> Result<PathBuf> {
    let home = cache::directory("helm")?.join(VERSION);
    fs::create_dir_all(&home).context("make the directory for helm")?;
    // Concurrent builds would write the same file.
    let lock = File::create(home.join("lock")).context("make the lock of the build")?;
    lock.lock().context("wait for another build")?;
    let built = home.join("helm");
    if !built.is_file() {
        // An interrupted build must not be found as a result.
        let fresh = home.join("fresh");
        let mut go = Command::new("go");
        go.args(["install", "-trimpath", "-ldflags", "-s -w"])
            .args(["-gcflags", "all=-dwarf=false"])
            .arg(format!("helm.sh/helm/v3/cmd/helm@{VERSION}"))
            .env("CGO_ENABLED", "0")
            .env("GOBIN", &fresh)
            .env("GOFLAGS", "")
            .env("GOTOOLCHAIN", "local");
        run(&mut go).context("build helm")?;
        fs::rename(fresh.join("helm"), &built).context("put helm in its place")?;
    }
    Ok(built)
}

/// Makes a command of Helm use this directory instead of its user's home.
pub fn keep_in(command: &mut Command, directory: &Path) {
    for (variable, name) in [
        ("HELM_CACHE_HOME", "cache"),
        ("HELM_CONFIG_HOME", "configuration"),
        ("HELM_DATA_HOME", "data"),
    ] {
        command.env(variable, directory.join(name));
    }
}
