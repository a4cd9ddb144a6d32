//! `attach`, `waitforattach`, `isattached` and `detach`: a record of the node that has the volume, and a loop
//! device.

use crate::{
    Answer, Driver, Stop,
    faults::Fault,
    stop,
    variants::Variant,
    volume::{Volume, blank},
};
use nix::sys::signal::{SigSet, Signal};
use serde_json::{Value, json};
use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// The node that has a volume, with the details of the attachment.
struct Held {
    node: String,
    image: PathBuf,
    read_only: bool,
    pool: String,
}

fn failure<T>(words: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Failure(words.into()))
}

impl Driver {
    fn held(&self, name: &str) -> Result<Option<Held>, Stop> {
        let path = self.record("attached", Path::new(name))?;
        let Ok(text) = fs::read_to_string(path) else {
            return Ok(None);
        };
        let value: Value = match serde_json::from_str(&text) {
            Ok(value) => value,
            Err(_) => return failure("read who has the volume: the record is damaged"),
        };
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        Ok(Some(Held {
            node: text("node"),
            image: text("image").into(),
            read_only: value["readOnly"] == true,
            pool: text("pool"),
        }))
    }

    fn hold(&self, volume: &Volume, node: &str) -> Result<(), Stop> {
        let path = self.record("attached", Path::new(&volume.name))?;
        let text = json!({
            "node": node, "image": volume.image, "readOnly": volume.read_only, "pool": volume.pool,
        });
        let new = path.with_extension("new");
        fs::write(&new, text.to_string())
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|e| stop("record who has the volume", &e))
    }

    /// Returns the loop devices of an image. Not from losetup, whose list is incomplete while devices come and go.
    pub fn devices(&self, image: &Path) -> Result<Vec<String>, Stop> {
        let entries = fs::read_dir("/sys/block").map_err(|e| stop("list the devices", &e))?;
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| stop("list the devices", &e))?;
            // Other devices, and one that has just disappeared, have no such file.
            let text = fs::read_to_string(entry.path().join("loop/backing_file"));
            if text.is_ok_and(|text| Path::new(text.trim_end_matches('\n')) == image) {
                found.push(format!("/dev/{}", entry.file_name().to_string_lossy()));
            }
        }
        Ok(found)
    }

    /// Waits until the device is gone. It disappears with its last user, which may be any program that inspects
    /// devices; a later attach must not find a device that is about to disappear.
    pub fn until_let_go(&self, image: &Path) -> Result<(), Stop> {
        for _ in 0..500 {
            if self.devices(image)?.is_empty() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(10));
        }
        failure("detach the volume: somebody has its device open")
    }

    pub fn attach(&self, options: &str, node: &str) -> Answer {
        let options = self.options(options)?;
        if self.has(Fault::AttachesNothing) && !self.has_image(&options) {
            return Ok(json!({ "device": "/dev/null" }));
        }
        let volume = self.volume(&options)?;
        let _lock = self.lock(Path::new(&volume.name))?;
        if let Some(held) = self.held(&volume.name)? {
            if held.node != node && !self.has(Fault::StealsFromNodes) {
                return failure(format!("node {} has the volume", held.node));
            }
            if held.read_only && !volume.read_only && !self.has(Fault::ForgetsTheMode) {
                return failure("the volume is attached read-only; detach it first");
            }
        }
        let begun = self.record("attaching", Path::new(&volume.name))?;
        if self.has(Fault::RecordsTheAttachFirst) {
            if begun.exists() && self.devices(&volume.image)?.is_empty() {
                return failure("the volume is being attached");
            }
            fs::write(&begun, node).map_err(|e| stop("record the attachment", &e))?;
            thread::sleep(Duration::from_millis(100));
        }
        if self.is(Variant::RefusesAtAttach) && !blank(&volume.image)? {
            self.format(&volume)?;
        }
        let mut found = self.devices(&volume.image)?;
        if self.has(Fault::LosesTheDevice) && found.is_empty() {
            return failure("no new device appeared");
        }
        if self.has(Fault::AttachesTwice) {
            found.clear();
        }
        let device = match found.pop() {
            Some(device) => device,
            None => {
                let mut words = vec![OsStr::new("--find"), OsStr::new("--show")];
                words.extend(volume.read_only.then_some(OsStr::new("--read-only")));
                words.extend([OsStr::new("--"), volume.image.as_os_str()]);
                self.tool("losetup", &words)?.trim().to_owned()
            }
        };
        self.hold(&volume, node)?;
        if self.has(Fault::RecordsTheAttachFirst) {
            fs::remove_file(&begun).map_err(|e| stop("record the attachment", &e))?;
        }
        if self.has(Fault::NamesNoDevice) {
            return Ok(json!({}));
        }
        Ok(json!({ "device": device }))
    }

    pub fn waitforattach(&self, device: &str, options: &str) -> Answer {
        let options = self.options(options)?;
        if self.has(Fault::DeafToSignals) && !device.is_empty() && !Path::new(device).exists() {
            // A shell defers signals like this while its child sleeps.
            let mut signals = SigSet::empty();
            signals.add(Signal::SIGTERM);
            signals
                .thread_block()
                .map_err(|e| stop("wait for the device", &e))?;
            thread::sleep(Duration::from_secs(60));
        }
        if self.has(Fault::AttachesNothing) && !self.has_image(&options) {
            return Ok(json!({ "device": device }));
        }
        let volume = self.volume(&options)?;
        match self.devices(&volume.image)?.pop() {
            Some(_) if self.has(Fault::WaitsWithoutDevice) || self.has(Fault::NamesNoDevice) => {
                Ok(json!({}))
            }
            Some(found) => Ok(json!({ "device": found })),
            None => failure("the volume is not attached"),
        }
    }

    pub fn isattached(&self, options: &str, node: &str) -> Answer {
        let volume = match self.options(options).and_then(|all| self.volume(&all)) {
            Err(_) if self.has(Fault::ErrorsAreFalse) => return Ok(json!({ "attached": false })),
            other => other?,
        };
        let held = self.held(&volume.name)?;
        let is = held.is_some_and(|held| held.node == node && held.pool == volume.pool);
        let is = is && !self.has(Fault::NeverSaysAttached) || self.has(Fault::AlwaysSaysAttached);
        Ok(json!({ "attached": is }))
    }

    pub fn detach(&self, name: &str, node: &str) -> Answer {
        if self.has(Fault::DetachWantsADevice) && !name.starts_with("/dev/") {
            return failure("that is no device");
        }
        if self.has(Fault::DetachAsksAShell) {
            let script = format!("grep -q {name} /proc/mounts");
            self.output("sh", &["-c", &script])?;
        }
        let _lock = self.lock(Path::new(name))?;
        let known = self.record("known-to-detach", Path::new(name))?;
        let Some(held) = self.held(name)? else {
            if self.has(Fault::DetachesOnce) && known.exists()
                || self.has(Fault::DetachesTheKnown) && !known.exists()
            {
                return failure("it is not attached");
            }
            return Ok(json!({}));
        };
        if held.node != node && !self.has(Fault::IgnoresTheNode) {
            return Ok(json!({}));
        }
        let record = self.record("attached", Path::new(name))?;
        if self.has(Fault::DetachesHalf) {
            fs::remove_file(&record).map_err(|e| stop("forget who has the volume", &e))?;
            thread::sleep(Duration::from_millis(100));
        }
        let mounted: Vec<_> = self
            .mounts()?
            .into_iter()
            .filter(|mount| mount.image().as_ref() == Some(&held.image))
            .collect();
        if !mounted.is_empty() && !self.has(Fault::DetachesByForce) {
            return failure("the volume is mounted on this node");
        }
        for mount in &mounted {
            self.tool("umount", &["--lazy".as_ref(), mount.point.as_os_str()])?;
        }
        for device in self.devices(&held.image)? {
            self.tool("losetup", &["--detach", &device])?;
        }
        if mounted.is_empty() {
            self.until_let_go(&held.image)?;
        }
        if !self.has(Fault::DetachesHalf) {
            fs::remove_file(record).map_err(|e| stop("forget who has the volume", &e))?;
        }
        if self.has(Fault::DetachesOnce) || self.has(Fault::DetachesTheKnown) {
            fs::write(known, name).map_err(|e| stop("keep a record", &e))?;
        }
        Ok(json!({}))
    }
}
