//! Calls drivers with hostile values. It uses a real volume if it can make one, because a driver may refuse
//! everything about a volume that does not exist without looking at the value.

use crate::{
    bench::{Bench, sandbox::sandboxed},
    callout::{
        argument::{self, Options},
        call::Call,
    },
    system::{self, cleanup, command, mounts},
    verdict::{Fault, Stop, Verdict},
    volume::Volume,
};
use anyhow::{Context, Result};
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

/// Callouts in the order in which they get the value. Everything is unmounted before `detach` and the
/// callouts after it.
const CALLOUT_ORDER: [&str; 9] = [
    "getvolumename",
    "attach",
    "waitforattach",
    "isattached",
    "mountdevice",
    "mount",
    "expandfs",
    "detach",
    "expandvolume",
];

/// A volume for hostile values. It is replaced once its content would keep a later value from having an effect.
#[derive(Debug)]
pub struct Victim<'a, 'run> {
    bench: &'a Bench<'run>,
    volume: Option<Volume>,
    /// Something was mounted, so the volume may be formatted.
    used: bool,
    /// A usual volume was mounted in the sandbox too.
    is_controlled: bool,
}

/// A callout that was made with a hostile value.
#[derive(Debug)]
pub struct HostileCall<'a> {
    pub call: Call,
    /// The directory that the callout got.
    pub dir: PathBuf,
    volume: &'a Volume,
    device: &'a str,
}

/// A function that judges every callout.
pub type Judge<'a> = &'a mut (dyn FnMut(&HostileCall) -> Verdict + Send);

impl<'a, 'run> Victim<'a, 'run> {
    pub fn new(bench: &'a Bench<'run>) -> Self {
        Victim {
            bench,
            volume: None,
            used: false,
            is_controlled: false,
        }
    }

    /// Makes, in the sandbox, every callout that takes the changed members of the JSON, or the name in `detach`;
    /// for each of the targets in turn.
    pub fn call_with(&mut self, mut targets: &[Options], judge: Judge) -> Verdict {
        self.control()?;
        while let Some(first) = targets.first() {
            let volume = self.volume(first)?;
            let device = match self.volume {
                Some(_) => self.attached(&volume)?,
                None => String::new(),
            };
            let mut number = 0;
            sandboxed(self.bench, || {
                // Entering the sandbox costs more than a call.
                for members in targets {
                    if number > 0 && self.wants_another(members) {
                        break;
                    }
                    self.make_callouts(members, (&volume, &device), judge)?;
                    number += 1;
                    if members.contains_key(argument::NAME) {
                        // The volume may now be detached.
                        break;
                    }
                }
                Ok(())
            })?;
            targets = &targets[number..];
        }
        Ok(())
    }

    /// Leaves the check out if the driver cannot mount a usual volume in the sandbox and can outside: it would
    /// refuse everything there.
    fn control(&mut self) -> Verdict {
        let bench = self.bench;
        let makes = system::is_root() && bench.run.source.is_fresh();
        if self.is_controlled || !makes || bench.run.mounts_nothing() {
            return Ok(());
        }
        self.is_controlled = true;
        let volume = bench.volume()?;
        let mount = || -> Verdict {
            let mount_point = bench.attach_and_mount(&volume, "sanity-control", "rw")?;
            bench.unmount_and_detach(&mount_point)
        };
        match mount() {
            Ok(()) => {}
            // Other checks judge how a volume is mounted.
            Err(Stop::Fault(_) | Stop::NotApplicable(_)) => return bench.done_with(&volume),
            other => return other,
        }
        match sandboxed(bench, mount) {
            Err(Stop::Fault(fault)) => Err(needs_writes(&fault)),
            Err(other) => Err(other),
            Ok(()) => bench.done_with(&volume),
        }
    }

    fn make_callouts(
        &mut self,
        members: &Options,
        volume: (&Volume, &str),
        judge: &mut (dyn FnMut(&HostileCall) -> Verdict + Send),
    ) -> Verdict {
        let bench = self.bench;
        for callout in CALLOUT_ORDER
            .into_iter()
            .filter(|name| bench.run.supports(name))
        {
            let hostile = make_callout(bench, callout, members, volume)?;
            let Some(hostile) = hostile else { continue };
            let mounts = ["mount", "mountdevice"].contains(&callout);
            self.used |= mounts && hostile.call.succeeded();
            judge(&hostile)?;
        }
        unmount_all(bench)
    }

    /// Attaches the volume as usual. Other checks judge how the driver does that.
    fn attached(&self, volume: &Volume) -> Result<String, Stop> {
        match self.bench.attach_and_wait(volume, "rw") {
            Err(Stop::Fault(_)) => Ok(String::new()),
            other => other,
        }
    }

    /// Whether these members need a blank volume and the present one may have been formatted. Members about the
    /// pod and the volume's name do not influence formatting.
    fn wants_another(&self, members: &Options) -> bool {
        let harmless =
            |key: &String| key.starts_with("kubernetes.io/pod.") || key == argument::NAME;
        self.volume.is_some() && self.used && !members.keys().all(harmless)
    }

    fn volume(&mut self, members: &Options) -> Result<Volume, Stop> {
        let bench = self.bench;
        if !system::is_root() || !bench.run.source.is_fresh() {
            return Ok(bench.run.missing_volume());
        }
        if self.wants_another(members)
            && let Some(old) = self.volume.take()
        {
            bench.done_with(&old)?;
            self.used = false;
        }
        let volume = match self.volume.take() {
            Some(volume) => volume,
            None => bench.volume()?,
        };
        self.volume = Some(volume.clone());
        Ok(volume)
    }
}

/// Leaves a check of hostile values out, because of what a usual volume met in the sandbox.
pub fn needs_writes(fault: &Fault) -> Stop {
    let callout = fault.call.as_ref().map_or("", Call::callout);
    Stop::Skipped(format!(
        "the directories that the driver writes, named in writes: {callout} fails where only those can be written"
    ))
}

/// Makes one callout with the value. None if the callout takes none of the members.
fn make_callout<'a>(
    bench: &Bench,
    callout: &str,
    members: &Options,
    (volume, device): (&'a Volume, &'a str),
) -> Result<Option<HostileCall<'a>>, Stop> {
    let own = |callout: &str| bench.dir.join("place").join(callout);
    let mut dir = own(callout);
    system::make_directory(&dir).context("make a directory")?;
    if callout == "detach" {
        unmount_all(bench)?;
    }
    if callout == "expandfs" {
        for mounted in ["mountdevice", "mount"].map(own) {
            if !mounts::at(&mounted)?.is_empty() {
                dir = mounted;
            }
        }
    }
    let mut argv = bench.run.arguments(callout, volume, &dir, device);
    if let Some(place) = argv.iter().position(|word| word.starts_with('{')) {
        let mut all: Options = serde_json::from_str(&argv[place]).context("read our own JSON")?;
        all.extend(members.clone());
        argv[place] = argument::object(&all);
    } else if callout == "detach"
        && let Some(name) = members.get(argument::NAME)
    {
        argv[1].clone_from(name);
    } else {
        return Ok(None);
    }
    let call = bench.call(&argv)?;
    Ok(Some(HostileCall {
        call,
        dir,
        volume,
        device,
    }))
}

/// Lets the driver unmount, and removes the mounts that remain.
fn unmount_all(bench: &Bench) -> Verdict {
    for (callout, undone) in [("mount", "unmount"), ("mountdevice", "unmountdevice")] {
        let dir = bench.dir.join("place").join(callout);
        if mounts::below(&dir)?.is_empty() {
            continue;
        }
        if bench.run.supports(undone) {
            bench.call(&[undone, &dir.to_string_lossy()])?;
        }
        for mount in mounts::below(&dir)?.iter().rev() {
            cleanup::unmount(&mount.point)?;
        }
    }
    Ok(())
}

impl HostileCall<'_> {
    /// Whether the callout should have mounted something, but nothing is mounted.
    pub fn mounted_nothing(&self) -> Result<bool> {
        let mounts = ["mount", "mountdevice"].contains(&self.call.callout());
        Ok(mounts && mounts::at(&self.dir)?.is_empty())
    }

    /// Whether the file system of the volume has this label.
    pub fn is_labelled(&self, label: &str) -> Result<bool> {
        let mounted = mounts::at(&self.dir)?.pop();
        let mounted = mounted.map(|mount| format!("/dev/block/{}", mount.device).into());
        let content = self.volume.content.clone();
        for path in content
            .into_iter()
            .chain(mounted)
            .chain([self.device.into()])
        {
            if path.exists() && label_of(&path)? == label {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn label_of(path: &Path) -> Result<String> {
    let words = ["-p", "-o", "value", "-s", "LABEL"].map(OsStr::new);
    let (_, said) = command::code("blkid", &[&words[..], &[path.as_os_str()]].concat())?;
    Ok(said.trim().to_owned())
}
