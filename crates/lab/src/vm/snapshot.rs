//! Cached image and snapshot of a machine that has booted and waits for its first request.

use super::{
    emulator,
    image::Image,
    machine::Machine,
    packages::{KERNEL, NEWER_KERNEL},
    setup::Setup,
};
use crate::cache;
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::{
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    sync::OnceLock,
    thread,
    time::{Duration, Instant, SystemTime},
};

/// Everything that a cached image and snapshot depend on. They are rebuilt when any of it changes.
const SOURCES: [&str; 5] = [
    include_str!("emulator.rs"),
    include_str!("image.rs"),
    include_str!("init.sh"),
    include_str!("packages.rs"),
    include_str!("snapshot.rs"),
];

/// Returns the cache directory of the virtual machine.
///
/// # Errors
/// When there is no cache directory.
pub fn directory() -> Result<PathBuf> {
    cache::directory("vm")
}

/// Returns the image and the saved state. Builds them if needed.
pub fn kept() -> Result<(Image, PathBuf)> {
    static KEY: OnceLock<String> = OnceLock::new();
    let key = match KEY.get() {
        Some(key) => key,
        None => {
            let mut hasher = DefaultHasher::new();
            SOURCES.hash(&mut hasher);
            emulator::version()?.hash(&mut hasher);
            KEY.get_or_init(|| format!("{:016x}", hasher.finish()))
        }
    };
    let all = directory()?;
    let home = all.join(key);
    let state = home.join("state");
    if let Ok(file) = File::options().write(true).open(&state) {
        // `remove_unused` reads this time.
        file.set_modified(SystemTime::now())
            .context("note that the state is used")?;
    }
    if !state.is_file() {
        fs::create_dir_all(&all).context("make the directory for images")?;
        let _lock = alone(&all)?;
        if !state.is_file() {
            build(&all, &home)?;
        }
    }
    Ok((Image::in_directory(&home), state))
}

/// Returns the image with the newer kernel, for which no state is saved. It is stored next to the other image.
pub fn newer() -> Result<Image> {
    let (image, _) = kept()?;
    let home = image.kernel.with_file_name("newer");
    if !home.is_dir() {
        let all = directory()?;
        let _lock = alone(&all)?;
        if !home.is_dir() {
            let (work, fresh) = empty(&all)?;
            let image = Image::in_directory(&fresh);
            image.build(NEWER_KERNEL, &work, &all.join("packages"))?;
            fs::rename(&fresh, &home).context("put the image in its place")?;
            fs::remove_dir_all(&work).context("remove the parts of the image")?;
        }
    }
    Ok(Image::in_directory(&home))
}

/// Locks the cache: concurrent builds would write the same files.
fn alone(all: &Path) -> Result<File> {
    let lock = File::create(all.join("lock")).context("make the lock of the build")?;
    lock.lock().context("wait for another build")?;
    Ok(lock)
}

/// Creates an empty build directory, and in it the image's future home, on the same file system. The path is fixed, so
/// that the next build removes what an interrupted one left.
fn empty(all: &Path) -> Result<(PathBuf, PathBuf)> {
    let work = all.join("work");
    if work.exists() {
        fs::remove_dir_all(&work).context("remove what another build left")?;
    }
    let fresh = work.join("fresh");
    fs::create_dir_all(&fresh).context("make the directory of the build")?;
    Ok((work, fresh))
}

fn build(all: &Path, home: &Path) -> Result<()> {
    let (work, fresh) = empty(all)?;
    let image = Image::in_directory(&fresh);
    image.build(KERNEL, &work, &all.join("packages"))?;
    save(&image, &work, &fresh.join("state"))?;
    if home.exists() {
        fs::remove_dir_all(home).context("remove an older image")?;
    }
    fs::rename(&fresh, home).context("put the image in its place")?;
    fs::remove_dir_all(&work).context("remove the parts of the image")?;
    remove_unused(all)
}

/// Age at which an image of other sources is removed.
const UNUSED: Duration = Duration::from_secs(3 * 24 * 3600);

/// Removes images that were not used for a long time: each takes 300 MB, and each version of the sources has one.
fn remove_unused(all: &Path) -> Result<()> {
    for entry in fs::read_dir(all).context("list the images")? {
        let dir = entry.context("list the images")?.path();
        let Ok(state) = fs::metadata(dir.join("state")) else {
            continue;
        };
        let used = state.modified().context("see when an image was used")?;
        if used.elapsed().is_ok_and(|age| age > UNUSED) {
            fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
        }
    }
    Ok(())
}

/// Boots the image and saves the machine's state while it runs.
fn save(image: &Image, work: &Path, state: &Path) -> Result<()> {
    let (machine, ready) = Machine::boot_image(&Setup::new(work), image, "")?;
    // The kernel reseeds its random generator from recent entropy when the last seed is older than half of the uptime
    // (`crng_has_old_seed` in drivers/char/random.c of Linux 6.1). After this pause every restored machine does so, and
    // none repeats another's numbers: see `init.sh`.
    thread::sleep(Duration::from_secs_f64(ready + 2.0));
    let mut monitor = machine.monitor()?;
    let quoted = state.display().to_string().replace('\'', r"'\''");
    monitor.ask("migrate", json!({"uri": format!("exec:cat >'{quoted}'")}))?;
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let answer = monitor.ask("query-migrate", json!({}))?;
        match answer["status"].as_str() {
            Some("completed") => return Ok(()),
            Some("failed" | "cancelled") => bail!("qemu did not save the state: {answer}"),
            _ if Instant::now() > deadline => bail!("qemu does not save the state: {answer}"),
            _ => thread::sleep(Duration::from_millis(50)),
        }
    }
}
