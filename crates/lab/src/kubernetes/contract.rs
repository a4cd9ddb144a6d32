//! Contract tests: Kubernetes' own FlexVolume plugin, linked into tests that call the drivers built here as kubelet
//! does.

use super::{
    command::run,
    module::{go, kept, write_module},
    version::Version,
};
use anyhow::{Context, Result};
use std::{
    fs::{self, File},
    path::Path,
    process::Command,
};

/// First release with tests of its own.
const FIRST_MINOR: u32 = 20;

/// Builds the tests in `sources` for a release into the file `to`.
///
/// # Errors
/// When the build fails.
pub fn build(version: Version, sources: &Path, to: &Path) -> Result<()> {
    let home = kept(version)?;
    fs::create_dir_all(&home).context("make the directory for builds")?;
    // Several checkouts may build concurrently.
    let lock = File::create(home.join("contract.lock")).context("make the lock of the tests")?;
    lock.lock().context("wait for another build")?;
    let module = home.join("contract");
    if module.exists() {
        // Files that were deleted from the tree must not remain in the tests.
        fs::remove_dir_all(&module).context("remove an older build of the tests")?;
    }
    fs::create_dir_all(&module).context("make the tests' Go module")?;
    for entry in fs::read_dir(sources).context("list the tests")? {
        let path = entry.context("list the tests")?.path();
        if path.extension().is_some_and(|extension| extension == "go") {
            let name = path.file_name().context("a file's name")?;
            fs::copy(&path, module.join(name)).context("copy the tests")?;
        }
    }
    write_module(&module, version)?;
    // As with Go's own release tags, the tag of each release up to this one is set.
    let tags: Vec<_> = (FIRST_MINOR..=version.minor())
        .map(|minor| format!("kubernetes1.{minor}"))
        .collect();
    let mut build = go(version, &module);
    build.args(["test", "-c", "-trimpath", "-tags", &tags.join(","), "-o"]);
    run(build.arg(to).arg(".")).context("build the tests")?;
    Ok(())
}

/// Returns a command that runs built tests on the drivers in the directory `drivers`, in a mount namespace of its own.
///
/// # Errors
/// When this process' mount namespace cannot be determined.
pub fn command(tests: &Path, version: Version, drivers: &Path) -> Result<Command> {
    let outside = fs::read_link("/proc/self/ns/mnt").context("ask for the mount namespace")?;
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private"])
        .arg(tests)
        .current_dir("/")
        .env("FLEXVOL_BUILT", drivers)
        .env("FLEXVOL_OUTSIDE", outside)
        .env("KUBERNETES", version.to_string());
    Ok(command)
}
