//! `mount`, `mountdevice`, `unmount` and `unmountdevice`.

use crate::{Answer, Driver, Stop, faults::Fault, stop, variants::Variant, volume::Volume};
use nix::fcntl::Flock;
use serde_json::{Map, Value, json};
use std::{
    ffi::OsStr,
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

pub fn failure<T>(words: &str) -> Result<T, Stop> {
    Err(Stop::Failure(words.to_owned()))
}

pub fn directory(text: &str) -> Result<PathBuf, Stop> {
    if Path::new(text).is_absolute() {
        Ok(text.into())
    } else {
        failure("the directory is no absolute path")
    }
}

/// Sleeps long enough for other processes to interfere.
pub fn dawdle() {
    thread::sleep(Duration::from_millis(250));
}

impl Driver {
    pub fn mount(&self, target: &str, options: &str, device: &str) -> Answer {
        let target = directory(target)?;
        let options = self.options(options)?;
        self.secrets(&options)?;
        if self.before_mount(&target, &options)? {
            return Ok(json!({}));
        }
        let volume = self.volume(&options)?;
        let staged = match self.is(Variant::ThreeStages) && device.is_empty() {
            true => self.devices(&volume.image)?.pop(),
            false => None,
        };
        let device = staged.as_deref().unwrap_or(device);
        let _pid = self.pid_file(&volume)?;
        if self.has(Fault::OneDeviceForAll) {
            let newest = self.record("newest", Path::new(""))?;
            fs::write(&newest, volume.image.as_os_str().as_encoded_bytes())
                .map_err(|e| stop("find the device", &e))?;
        }
        if self.has(Fault::LooksBeforeTheLock) && !crate::volume::blank(&volume.image)? {
            dawdle();
            if self.there(&volume, &target)? {
                return Ok(json!({}));
            }
            dawdle();
            self.attach_and_mount(&volume, &target, device)?;
            return Ok(json!({}));
        }
        if self.has(Fault::WaitsForItsMkfs) {
            self.wait_for_mkfs(&volume)?;
        }
        let _locks = self.locks(&volume, &target)?;
        if self.has(Fault::NeedsTheLogToMount) {
            self.log_at_the_node()?;
        }
        if self.has(Fault::WaitsForEver) {
            // Takes as long as work over a network.
            thread::sleep(Duration::from_millis(500));
        }
        if self.has(Fault::RecordsTooEarly) {
            let made = self.record("made", &volume.image)?;
            if !made.exists() {
                File::create(&made).map_err(|e| stop("record the volume", &e))?;
                dawdle();
                self.format(&volume)?;
            }
        } else {
            if self.there(&volume, &target)? {
                return Ok(json!({}));
            }
            self.format(&volume)?;
        }
        if self.has(Fault::LocksNothing) {
            dawdle();
        }
        if self.has(Fault::PrintsOnItsWay) {
            self.print_on_the_way(&volume)?;
        }
        if self.has(Fault::EmptiesTheTarget) {
            empty(&target)?;
        }
        if self.has(Fault::LeavesAFile) {
            File::create(target.join("volume.json")).map_err(|e| stop("keep state", &e))?;
        }
        self.attach_and_mount(&volume, &target, device)?;
        Ok(json!({}))
    }

    /// Whether the volume is mounted already; a Failure if something else is.
    fn there(&self, volume: &Volume, target: &Path) -> Result<bool, Stop> {
        if self.has(Fault::StacksMounts) {
            return Ok(false);
        }
        let mounts = self.mounts_at(target)?;
        match mounts.last() {
            None => Ok(false),
            Some(_) if self.has(Fault::AnyMountWillDo) => Ok(true),
            Some(_) if self.has(Fault::AlreadyMounted) => failure("it is mounted already"),
            Some(mount) if mount.image().as_ref() == Some(&volume.image) => Ok(true),
            Some(_) => failure("something else is mounted on the directory"),
        }
    }

    /// Waits without a timeout until the formatting process ends.
    fn wait_for_mkfs(&self, volume: &Volume) -> Result<(), Stop> {
        let begun = self.record("formatting", &volume.image)?;
        while let Ok(process) = fs::read_to_string(&begun) {
            if process.is_empty() || !Path::new("/proc").join(process).exists() {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    pub fn attach_and_mount(
        &self,
        volume: &Volume,
        target: &Path,
        device: &str,
    ) -> Result<(), Stop> {
        let mode = if volume.read_only && !self.has(Fault::IgnoresReadOnly) {
            "ro"
        } else {
            "rw"
        };
        let mut image = volume.image.clone();
        if self.has(Fault::OneDeviceForAll) {
            let newest = self.record("newest", Path::new(""))?;
            dawdle();
            let text = fs::read_to_string(&newest).map_err(|e| stop("find the device", &e))?;
            image = text.into();
        }
        let (device, open) = match device {
            "" => self.loop_device(&image)?,
            attached => (attached.to_owned(), None),
        };
        let (what, how) = (OsStr::new(&device), format!("{mode},nosuid,nodev,nouuid"));
        let words = ["-t", "xfs", "-o", &how, "--"].map(OsStr::new);
        let mut arguments = [&words[..], &[what, target.as_os_str()]].concat();
        if self.has(Fault::MountErrorDropped) {
            arguments.insert(0, OsStr::new("--no-such-option"));
            return self.output("mount", &arguments).map(drop);
        }
        self.tool("mount", &arguments)?;
        drop(open);
        if self.mounts_at(target)?.is_empty() && !self.has(Fault::TakesOctalLiterally) {
            return failure("nothing is mounted after mount's success");
        }
        if let Some(group) = volume.group
            && !volume.read_only
        {
            std::os::unix::fs::chown(target, None, Some(group))
                .map_err(|e| stop("give the volume to the group", &e))?;
            fs::set_permissions(target, fs::Permissions::from_mode(0o2775))
                .map_err(|e| stop("give the volume to the group", &e))?;
        }
        if self.has(Fault::MapInMemory) {
            File::create(self.record("known", target)?).map_err(|e| stop("keep a record", &e))?;
        }
        Ok(())
    }

    /// Returns the image's loop device, or a new one. It is released with its last user, and is held open until it is
    /// mounted.
    ///
    /// `mount -o loop` asks every loop device of the node for its image, and waits for those whose image is on a server
    /// that does not answer.
    fn loop_device(&self, image: &Path) -> Result<(String, Option<File>), Stop> {
        // The kernel mounts one device only once on a directory.
        let of_its_own = self.has(Fault::LooksBeforeTheLock) || self.has(Fault::ForgetsTheDevice);
        if !of_its_own
            && let Some(device) = self.devices(image)?.pop()
            && let Ok(open) = File::open(&device)
            && self.devices(image)?.contains(&device)
        {
            return Ok((device, Some(open)));
        }
        let words = ["--find", "--show", "--"].map(OsStr::new);
        let device = self.tool("losetup", &[&words[..], &[image.as_os_str()]].concat())?;
        let device = device.trim().to_owned();
        if self.has(Fault::ForgetsTheDevice) {
            return Ok((device, None));
        }
        let open = File::open(&device).map_err(|e| stop("open the device", &e))?;
        self.tool("losetup", &["--detach", &device])?;
        Ok((device, Some(open)))
    }

    /// Locks the volume and the directory, because unmount knows only the directory.
    fn locks(&self, volume: &Volume, target: &Path) -> Result<Vec<Flock<File>>, Stop> {
        if self.has(Fault::LocksNothing) {
            return Ok(Vec::new());
        }
        Ok(vec![self.lock(&volume.image)?, self.lock(target)?])
    }

    pub fn unmount(&self, target: &str) -> Answer {
        let target = directory(target)?;
        let _lock = if self.has(Fault::LocksNothing) {
            None
        } else {
            Some(self.lock(&target)?)
        };
        let gone = self.record("gone", &target)?;
        let mounts = self.mounts_at(&target)?;
        if mounts.is_empty() {
            let there = target.exists();
            if self.has(Fault::NotMountedAnyMore) && gone.exists()
                || self.has(Fault::NeverMounted) && there && !gone.exists()
                || self.has(Fault::NoSuchDirectory) && !there
            {
                return failure("it is not mounted");
            }
        }
        if self.has(Fault::MapInMemory) && !self.record("known", &target)?.exists() {
            return Ok(json!({}));
        }
        if self.has(Fault::DeletesOnUnmount) && !mounts.is_empty() {
            empty(&target)?;
        }
        if self.has(Fault::SyncsFirst) && !mounts.is_empty() {
            let state = target.join(".unmounting");
            File::create(&state)
                .and_then(|file| file.sync_all())
                .and_then(|()| fs::remove_file(&state))
                .map_err(|e| stop("sync the volume", &e))?;
        }
        for _ in &mounts {
            let lazy = self.has(Fault::LazyUnmount).then_some(OsStr::new("--lazy"));
            let words = [OsStr::new("--"), target.as_os_str()];
            let arguments: Vec<_> = lazy.into_iter().chain(words).collect();
            self.tool("umount", &arguments)?;
            if self.has(Fault::StacksMounts) {
                break;
            }
        }
        if self.has(Fault::NotMountedAnyMore) || self.has(Fault::NeverMounted) {
            File::create(&gone).map_err(|e| stop("keep a record", &e))?;
        }
        if self.has(Fault::LeavesAFifo) {
            let fifo = self.state.join(format!("fifo-{}", std::process::id()));
            File::create(fifo).map_err(|e| stop("make a fifo", &e))?;
        }
        Ok(json!({}))
    }

    /// Applies faults that come before anything else; returns whether that was all.
    fn before_mount(&self, target: &Path, options: &Map<String, Value>) -> Result<bool, Stop> {
        let text = |key: &str| options.get(key).and_then(Value::as_str).unwrap_or_default();
        let image = text("image");
        if self.has(Fault::AsksAShell) {
            let script = format!("test -e {image} >/dev/null");
            self.output("sh", &["-c", &script])?;
        }
        if self.has(Fault::TrustsADash) && image.starts_with('-') {
            self.tool("mount", &[image.as_ref(), target.as_os_str()])?;
            return Ok(true);
        }
        if self.has(Fault::MountsNothingInstead) && !Path::new(image).exists() {
            return Ok(true);
        }
        if (self.has(Fault::TakesAnyDirectory) || self.has(Fault::ProvisionsAnyDirectory))
            && Path::new(image).is_dir()
        {
            self.tool(
                "mount",
                &["--bind".as_ref(), image.as_ref(), target.as_os_str()],
            )?;
            return Ok(true);
        }
        if self.has(Fault::NeedsThePod) && text("kubernetes.io/pod.namespace").is_empty() {
            return failure("there is no kubernetes.io/pod.namespace");
        }
        if self.has(Fault::LogsBeside) {
            fs::write(self.beside.join("broken.log"), "mount\n")
                .map_err(|e| stop("write the log", &e))?;
        }
        Ok(false)
    }

    fn secrets(&self, options: &Map<String, Value>) -> Result<(), Stop> {
        let mut secrets = options
            .iter()
            .filter(|(key, _)| key.starts_with("kubernetes.io/secret/"));
        match secrets.next() {
            Some((_, Value::String(secret)))
                if self.has(Fault::TellsTheSecret) && !self.has_image(options) =>
            {
                Err(Stop::Failure(format!("log in with {secret}: no server")))
            }
            _ => Ok(()),
        }
    }

    /// Takes a lock that is a file, which stays after a crash.
    fn pid_file(&self, volume: &Volume) -> Result<Option<PidFile>, Stop> {
        if !self.has(Fault::LocksByFile) {
            return Ok(None);
        }
        let path = self.record("pid", &volume.image)?;
        for _ in 0..1000 {
            if File::create_new(&path).is_ok() {
                return Ok(Some(PidFile(path)));
            }
            thread::sleep(Duration::from_millis(5));
        }
        failure("another call has the volume")
    }

    fn print_on_the_way(&self, volume: &Volume) -> Result<(), Stop> {
        let way = self.record("way", &volume.image)?;
        if way.exists() {
            return failure("another mount is on its way");
        }
        File::create(&way).map_err(|e| stop("keep a record", &e))?;
        crate::print("\n").map_err(|e| stop("print", &e))?;
        fs::remove_file(&way).map_err(|e| stop("remove a record", &e))
    }
}

#[derive(Debug)]
struct PidFile(PathBuf);

impl Drop for PidFile {
    fn drop(&mut self) {
        // If that fails the file stays, as in the real drivers with this fault.
        let _ = fs::remove_file(&self.0);
    }
}

/// Empties a directory like rm -rf.
fn empty(directory: &Path) -> Result<(), Stop> {
    let entries = fs::read_dir(directory).map_err(|e| stop("list the directory", &e))?;
    for entry in entries.filter_map(Result::ok) {
        let path = entry.path();
        if path.is_dir() {
            fs::remove_dir_all(path).map_err(|e| stop("empty the directory", &e))?;
        } else {
            fs::remove_file(path).map_err(|e| stop("empty the directory", &e))?;
        }
    }
    Ok(())
}
