//! The kernel's state, and the programs that change it.

use crate::{Driver, Stop, faults::Fault, stop, variants::Variant};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, Flock, FlockArg, fcntl},
};
use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, OpenOptions},
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Timeout for locks; callers give up after two minutes.
const PATIENCE: Duration = Duration::from_secs(10);

/// A line of `/proc/self/mountinfo`, as far as needed.
#[derive(Debug)]
pub struct Mount {
    /// `major:minor`
    pub device: String,
    pub point: PathBuf,
}

impl Mount {
    /// Returns the path of the device node.
    pub fn node(&self) -> Result<PathBuf, Stop> {
        let path = fs::canonicalize(format!("/sys/dev/block/{}", self.device))
            .map_err(|e| stop("find the device of a mount", &e))?;
        Ok(Path::new("/dev").join(path.file_name().unwrap_or_default()))
    }

    /// Returns the file behind the loop device.
    pub fn image(&self) -> Option<PathBuf> {
        let path = format!("/sys/dev/block/{}/loop/backing_file", self.device);
        let text = fs::read_to_string(path).ok()?;
        Some(text.trim_end_matches('\n').into())
    }
}

impl Driver {
    pub fn mounts(&self) -> Result<Vec<Mount>, Stop> {
        let text = fs::read("/proc/self/mountinfo").map_err(|e| stop("read the mounts", &e))?;
        let lines = text.split(|byte| *byte == b'\n');
        Ok(lines
            .filter_map(|line| {
                let mut fields = line.split(|byte| *byte == b' ');
                let device = String::from_utf8_lossy(fields.nth(2)?).into_owned();
                let point = fields.nth(1)?;
                Some(Mount {
                    device,
                    point: self.decoded(point),
                })
            })
            .collect())
    }

    /// Decodes octal escapes of space, tab, newline and backslash.
    fn decoded(&self, field: &[u8]) -> PathBuf {
        let mut bytes = Vec::with_capacity(field.len());
        let mut at = 0;
        while let Some(byte) = field.get(at) {
            let escaped = *byte == b'\\' && !self.has(Fault::TakesOctalLiterally);
            let octal = field.get(at + 1..at + 4).filter(|_| escaped);
            let code = octal
                .and_then(|digits| std::str::from_utf8(digits).ok())
                .and_then(|digits| u8::from_str_radix(digits, 8).ok());
            bytes.push(code.unwrap_or(*byte));
            at += if code.is_some() { 4 } else { 1 };
        }
        OsString::from_vec(bytes).into()
    }

    pub fn mounts_at(&self, directory: &Path) -> Result<Vec<Mount>, Stop> {
        let mut mounts = self.mounts()?;
        mounts.retain(|mount| mount.point == directory);
        Ok(mounts)
    }

    /// Runs a program of the system, and returns its output even if it fails.
    pub fn output<S: AsRef<OsStr>>(&self, name: &str, arguments: &[S]) -> Result<Output, Stop> {
        let mut command = Command::new(name);
        if !self.has(Fault::NeedsThePath) {
            command.env_clear().env("PATH", PATH).env("LC_ALL", "C");
        }
        command
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .map_err(|e| stop(&format!("start {name}"), &e))
    }

    /// Runs a program of the system; if it fails, fails with the last line of its errors.
    pub fn tool<S: AsRef<OsStr>>(&self, name: &str, arguments: &[S]) -> Result<String, Stop> {
        let output = self.output(name, arguments)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let words = String::from_utf8_lossy(&output.stderr);
        let line = words.lines().last().unwrap_or_default();
        let line: String = line
            .chars()
            .filter(|c| !c.is_control())
            .rev()
            .take(120)
            .collect();
        let line: String = line.chars().rev().collect();
        Err(Stop::Failure(format!("{name} failed: {line}")))
    }

    /// Takes a lock that is held until this process and all programs that it started have ended.
    pub fn lock(&self, what: &Path) -> Result<Flock<File>, Stop> {
        let mut file = self.lock_file(what)?;
        let end = Instant::now() + PATIENCE;
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(lock),
                Err((_, error)) if Instant::now() > end && !self.has(Fault::WaitsForEver) => {
                    return Err(stop("lock the volume, which another call has", &error));
                }
                Err((back, _)) => file = back,
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Takes the lock unless another call holds it.
    pub fn lock_unless_taken(&self, what: &Path) -> Result<Option<Flock<File>>, Stop> {
        match Flock::lock(self.lock_file(what)?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(lock)),
            Err((_, Errno::EAGAIN)) => Ok(None),
            Err((_, error)) => Err(stop("lock the volume", &error)),
        }
    }

    fn lock_file(&self, what: &Path) -> Result<File, Stop> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.record("lock", what)?)
            .map_err(|e| stop("open a lock", &e))?;
        fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty())).map_err(|e| stop("keep a lock", &e))?;
        Ok(file)
    }

    /// Returns the path of this driver's record about a path or name.
    pub fn record(&self, kind: &str, what: &Path) -> Result<PathBuf, Stop> {
        let directory = self.state.join(kind);
        fs::create_dir_all(&directory).map_err(|e| stop("make a directory of records", &e))?;
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        Ok(directory.join(format!("{:016x}", hasher.finish())))
    }

    pub fn is(&self, variant: Variant) -> bool {
        self.variants.contains(&variant)
    }

    pub fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }
}
