//! The driver `broken` as a vendor would install it, with commands that make and remove volumes in a
//! directory of the test.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// A directory with everything in it. Removed on drop.
pub struct Vendor(TempDir);

pub fn tester() -> PathBuf {
    env!("CARGO_BIN_EXE_flexvol-sanity").into()
}

fn broken() -> PathBuf {
    let path = tester().with_file_name("broken");
    assert!(path.is_file(), "build it: cargo build --workspace --bins");
    path
}

impl Vendor {
    /// Installs the driver with these faults.
    pub fn new(words: &str) -> Self {
        let place = tempfile::Builder::new()
            .prefix("flexvol-safety-")
            .tempdir()
            .unwrap();
        let vendor = Vendor(place);
        let beside = vendor.path("example.com~broken");
        for directory in [&beside, &vendor.volumes(), &vendor.path("state")] {
            fs::create_dir(directory).unwrap();
        }
        symlink(broken(), beside.join("broken")).unwrap();
        symlink(vendor.path("state"), beside.join(".state")).unwrap();
        fs::write(beside.join(".broken"), words).unwrap();
        vendor
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Directory in which the commands make volumes.
    pub fn volumes(&self) -> PathBuf {
        self.path("volumes")
    }

    /// Writes a script of the vendor.
    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, format!("#!/bin/sh\nset -e\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Installs a script that answers some callouts in place of the driver, `$real`: the arms of a `case` of `$1`.
    pub fn instead(&self, arms: &str) {
        let driver = self.path("example.com~broken/broken");
        let real = driver.with_file_name("real");
        if !real.is_symlink() {
            fs::rename(&driver, &real).unwrap();
        }
        let real = real.display();
        let script = format!("real={real}\ncase \"$1\" in\n{arms}\nesac\nexec $real \"$@\"");
        self.script("example.com~broken/broken", &script);
    }

    /// Writes a configuration with commands that make volumes, and `more`.
    pub fn configure(&self, more: &str) {
        let volumes = self.volumes();
        let volumes = volumes.display();
        let create = format!(
            "truncate --size $SANITY_BYTES {volumes}/$SANITY_NAME\n\
             echo '{{\"image\":\"'{volumes}/$SANITY_NAME'\"}}'"
        );
        let create = self.script("create", &create);
        let remove = self.script("remove", &format!("rm -f {volumes}/$SANITY_NAME"));
        self.configure_as(&format!(
            "[volume]\ncreate = [{create:?}]\nremove = [{remove:?}]\n{more}"
        ));
    }

    pub fn configure_as(&self, text: &str) {
        let state = self.path("state");
        let text = format!("deadline = 20\nwrites = [{state:?}]\n{text}\n");
        fs::write(self.path("sanity.toml"), text).unwrap();
    }

    /// Returns the command that runs the tester on this driver.
    pub fn tester(&self, words: &[&str]) -> Command {
        let mut command = Command::new(tester());
        command
            .args(words)
            .arg("--driver")
            .arg(self.path("example.com~broken/broken"))
            .arg("--config")
            .arg(self.path("sanity.toml"))
            .arg("--journal")
            .arg(self.path("journals"))
            .stdin(Stdio::null());
        command
    }

    /// Lists everything besides the driver: volumes, journals, the tester's directories, loop devices.
    pub fn left(&self, scratch: &Path) -> Vec<String> {
        let mut left = Vec::new();
        for directory in [self.volumes(), self.path("journals")] {
            for entry in fs::read_dir(&directory).into_iter().flatten() {
                left.push(entry.unwrap().path().display().to_string());
            }
        }
        if scratch.exists() {
            left.push(scratch.display().to_string());
        }
        let own = [self.0.path(), scratch].map(|path| path.display().to_string());
        for entry in fs::read_dir("/sys/block").unwrap() {
            let file = entry.unwrap().path().join("loop/backing_file");
            let text = fs::read_to_string(file).unwrap_or_default();
            if own.iter().any(|path| text.contains(path.as_str())) {
                left.push(text);
            }
        }
        left
    }

    /// The directory of the current run, from its journal.
    pub fn scratch(&self) -> Option<PathBuf> {
        let journal = fs::read_dir(self.path("journals")).ok()?.next()?.ok()?;
        let text = fs::read_to_string(journal.path()).ok()?;
        let first: serde_json::Value = serde_json::from_str(text.lines().next()?).ok()?;
        Some(first["Run"]["scratch"].as_str()?.into())
    }
}

/// Waits until the condition holds.
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "{what}: not within a minute");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A process that is killed on drop.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
