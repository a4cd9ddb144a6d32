//! What a check works with: calls of the driver that are kept, and what was made for it, which is
//! undone at the end whatever the driver left there.

use crate::{
    callout::{
        argument::{self, Options},
        call::{Call, Manner},
    },
    check::{Stop, Verdict, not_applicable},
    config::Kind,
    evidence::{Seen, Whose},
    journal::{Made, Record, Traces},
    subject::Run,
    system::{self, cleanup},
    volume::{Source, Volume},
};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// Whose directory something is mounted on.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum On {
    /// By `mount`.
    Pod,
    /// By `mountdevice`.
    Node,
}

/// A directory of kubelet's for a volume.
#[derive(Clone, Debug)]
pub struct Place {
    pub volume: Volume,
    pub uid: String,
    pub dir: PathBuf,
    pub on: On,
    /// What `waitforattach` answered.
    pub device: String,
}

/// One check's share of a run.
#[derive(Debug)]
pub struct Bench<'a> {
    pub run: &'a Run,
    pub dir: PathBuf,
    calls: Mutex<Vec<Call>>,
    volumes: Mutex<Vec<Volume>>,
    made: Mutex<Made>,
    notes: Mutex<Vec<String>>,
    manner: Mutex<Manner>,
    before: Seen,
    /// What was different from `before` when it was looked at.
    changes: Mutex<Option<Vec<String>>>,
    /// Kubelet restarts after every callout.
    restarting: AtomicBool,
}

/// What is left of a check when it has ended.
#[derive(Debug)]
pub struct Closed {
    pub calls: Vec<Call>,
    pub notes: Vec<String>,
    /// What [`Bench::look`] saw.
    pub changes: Vec<String>,
    /// What the driver should have removed when it unmounted and detached.
    pub left: Vec<String>,
    pub cleared: Result<()>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Bench<'a> {
    pub fn new(run: &'a Run, check: &str) -> Result<Self> {
        let dir = run.scratch.join(check);
        system::make_directory(&dir).context("make the check's directory")?;
        Ok(Bench {
            run,
            dir,
            calls: Mutex::default(),
            volumes: Mutex::default(),
            made: Mutex::default(),
            notes: Mutex::default(),
            manner: Mutex::default(),
            before: Seen::now()?,
            changes: Mutex::default(),
            restarting: AtomicBool::new(false),
        })
    }

    /// Something measured that is worth a line in the report.
    pub fn note(&self, text: impl Into<String>) {
        locked(&self.notes).push(text.into());
    }

    /// Looks once at what came and went since the check began, while it is there still.
    pub fn look(&self) -> Result<()> {
        self.look_since(&self.before)
    }

    /// The same where the mounts are others, or were changed for the check.
    pub fn look_since(&self, before: &Seen) -> Result<()> {
        let mut changes = locked(&self.changes);
        if changes.is_none() {
            let whose = Whose {
                scratch: &self.run.scratch,
                directory: &self.dir,
                made: &locked(&self.made),
            };
            *changes = Some(before.changes(&Seen::now()?, &whose));
        }
        Ok(())
    }

    /// Writes down what is about to be made, once.
    pub fn record(&self, record: Record) -> Result<()> {
        let mut made = locked(&self.made);
        let mut after = made.clone();
        after.note(&record);
        if after != *made {
            self.run.record(&record)?;
            *made = after;
        }
        Ok(())
    }

    /// Takes over what others made, to undo it.
    pub fn adopt(&self, volumes: BTreeMap<String, Traces>) {
        locked(&self.made).volumes = volumes;
    }

    pub fn traces(&self, volume: &str) -> Traces {
        let made = locked(&self.made);
        made.volumes.get(volume).cloned().unwrap_or_default()
    }

    /// Keeps a volume's device open until the check ends.
    pub fn keep(&self, volume: Volume) {
        locked(&self.volumes).push(volume);
    }

    pub fn let_go(&self, volume: &Volume) {
        locked(&self.volumes).retain(|other| other.name != volume.name);
    }

    pub fn call<S: AsRef<str>>(&self, argv: &[S]) -> Result<Call, Stop> {
        let manner = locked(&self.manner).clone();
        self.call_as(argv, &manner)
    }

    /// From here on every call is made like this.
    pub fn always(&self, manner: Manner) {
        *locked(&self.manner) = manner;
    }

    /// From here on kubelet restarts after every callout.
    pub fn restart_always(&self) {
        self.restarting.store(true, Ordering::Relaxed);
    }

    pub fn call_as<S: AsRef<str>>(&self, argv: &[S], manner: &Manner) -> Result<Call, Stop> {
        let argv: Vec<_> = argv.iter().map(|word| word.as_ref().to_owned()).collect();
        self.expect_traces(&argv)?;
        let call = self.run.call(&argv, manner)?;
        locked(&self.calls).push(call.clone());
        if self.restarting.load(Ordering::Relaxed) {
            self.restarted()?;
        }
        Ok(call)
    }

    /// What a new kubelet calls before anything else.
    fn restarted(&self) -> Result<(), Stop> {
        let mut calls = vec![vec!["init".to_owned()]];
        for volume in locked(&self.volumes).iter() {
            calls.push(vec!["getvolumename".to_owned(), volume.reconstructed()]);
        }
        for argv in calls {
            let call = self.run.call(&argv, &Manner::default())?;
            locked(&self.calls).push(call.clone());
            if !call.succeeded() && (argv[0] == "init" || !call.not_supported()) {
                let expected = "Success, as before kubelet restarted";
                return Err(crate::check::wrong(&call, expected, "something else"));
            }
        }
        Ok(())
    }

    /// Writes down what a call may leave, before it is made.
    pub fn expect_traces(&self, argv: &[String]) -> Result<()> {
        match argv {
            [callout, options, node, ..] if callout == "attach" => {
                let members: Options = serde_json::from_str(options).unwrap_or_default();
                match members.get(argument::NAME) {
                    Some(name) => self.expect_attached(name, node),
                    None => Ok(()),
                }
            }
            [callout, directory, ..] if callout == "mount" || callout == "mountdevice" => {
                let directory = Path::new(directory);
                if !directory.starts_with(&self.dir) {
                    return Ok(());
                }
                self.record(Record::Mount {
                    directory: directory.to_owned(),
                    on: if callout == "mount" {
                        On::Pod
                    } else {
                        On::Node
                    },
                })
            }
            _ => Ok(()),
        }
    }

    /// Writes down that one of the check's own volumes may be attached to a node.
    pub fn expect_attached(&self, volume: &str, node: &str) -> Result<()> {
        if !locked(&self.made).volumes.contains_key(volume) {
            return Ok(());
        }
        self.record(Record::Attach {
            name: volume.to_owned(),
            node: node.to_owned(),
        })
    }

    /// Stops unless `init` says that volumes are attached.
    pub fn needs_attach(&self) -> Verdict {
        if self.run.capabilities.attach {
            Ok(())
        } else {
            Err(not_applicable("init says attach: false"))
        }
    }

    /// Stops if the driver never does this.
    pub fn needs_callout(&self, callout: &str) -> Verdict {
        let run = self.run;
        if !run.is_called(callout) {
            return Err(not_applicable("init says attach: false"));
        }
        if run.unsupported.contains(callout) {
            return Err(not_applicable(format!("{callout} is Not supported")));
        }
        if run.unknown.contains(callout) {
            let why = format!("a volume: {callout} is Not supported of one that does not exist");
            return Err(Stop::Left(why));
        }
        Ok(())
    }

    /// Stops if kubelet takes the driver's volumes off their directories by itself.
    pub fn needs_unmounting(&self) -> Verdict {
        if self.run.supports("unmount") || self.run.supports("unmountdevice") {
            return Ok(());
        }
        // Which of them it is depends on how the driver is used.
        let last = if self.run.supports("mount") || !self.run.capabilities.attach {
            "unmount"
        } else {
            "unmountdevice"
        };
        self.needs_callout(last)
    }

    /// Stops if kubelet mounts the driver's volumes by itself.
    pub fn needs_mounting(&self) -> Verdict {
        if !self.run.mounts_nothing() {
            return Ok(());
        }
        if self.run.unknown.contains("mount") {
            return self.needs_callout("mount");
        }
        let why = "mountdevice and mount are Not supported: kubelet mounts the device";
        Err(not_applicable(why))
    }

    /// Stops if volumes are no devices, or the driver formats none.
    pub fn needs_device(&self) -> Verdict {
        if self.run.config.volume.kind == Kind::Directory {
            let why = "the configuration says kind = \"directory\": nothing is formatted";
            return Err(not_applicable(why));
        }
        self.needs_mounting()?;
        // Where neither callout names a device kubelet has none to format (`MountDevice` in
        // pkg/volume/flexvolume/attacher.go), and the driver formats in `mount`.
        let is_named = self.run.supports("attach") || self.run.supports("waitforattach");
        if self.run.capabilities.attach && is_named && self.run.unsupported.contains("mountdevice")
        {
            let why = "mountdevice is Not supported: kubelet formats the device";
            return Err(not_applicable(why));
        }
        Ok(())
    }

    /// Kubelet's root directory.
    pub fn root(&self) -> PathBuf {
        self.dir.join("kubelet")
    }

    /// Undoes everything the check made, and removes what the driver left; nothing of it if it is to be
    /// kept for a look.
    pub fn close(self, keep: bool) -> Closed {
        let mut left = Vec::new();
        let cleared = if keep { Ok(()) } else { self.clear(&mut left) };
        let inner =
            |mutex: Mutex<Vec<String>>| mutex.into_inner().unwrap_or_else(PoisonError::into_inner);
        Closed {
            calls: self
                .calls
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner),
            notes: inner(self.notes),
            changes: self
                .changes
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner)
                .unwrap_or_default(),
            left,
            cleared,
        }
    }

    fn clear(&self, left: &mut Vec<String>) -> Result<()> {
        self.restarting.store(false, Ordering::Relaxed);
        *locked(&self.manner) = Manner::default();
        let mut made = locked(&self.made).clone();
        let unwritten = if self.run.source == Source::Existing {
            let unwritten = self.unwrite(&made);
            made = locked(&self.made).clone();
            if unwritten.is_err() {
                self.run.keeps_files.store(true, Ordering::Relaxed);
            }
            unwritten
        } else {
            Ok(())
        };
        let mounts = Made {
            mounts: std::mem::take(&mut made.mounts),
            ..Made::default()
        };
        let mut first = self.run.undo(&mounts);
        if self.run.capabilities.attach {
            for (name, traces) in &made.volumes {
                for node in &traces.nodes {
                    let argv = ["detach".to_owned(), name.clone(), node.clone()];
                    first = first.and(self.run.call(&argv, &Manner::default()).map(drop));
                }
            }
        }
        left.extend(cleanup::clear(&self.dir)?);
        for traces in made.volumes.values() {
            left.extend(self.run.release(traces)?);
        }
        for (directory, _) in mounts.mounts {
            self.record(Record::Unmounted { directory })?;
        }
        for (name, mut traces) in made.volumes {
            // They are detached.
            traces.nodes.clear();
            let removed = self.run.remove(&name, &traces);
            // Whoever comes after the run tries again what could not be removed from a volume that
            // stays, whichever check wrote it.
            if removed.is_ok() && !self.run.keeps_files.load(Ordering::Relaxed) {
                self.record(Record::Gone { name })?;
            }
            first = first.and(removed);
        }
        locked(&self.volumes).clear();
        cleanup::clear(&self.dir)?;
        cleanup::remove(&self.dir)?;
        first.and(unwritten)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::header;

    #[test]
    fn what_kubelet_formats_the_driver_does_not() {
        let place = tempfile::tempdir().unwrap();
        let mut run = Run::new(&header(place.path()), Options::new(), None);
        let needs = |run: &Run| Bench::new(run, "fmt").unwrap().needs_device();
        run.unsupported = ["mountdevice".to_owned()].into();
        run.capabilities.attach = false;
        assert!(needs(&run).is_ok(), "it is not called at all");
        run.capabilities.attach = true;
        assert!(matches!(needs(&run), Err(Stop::NotApplicable(_))));
        run.unsupported.clear();
        assert!(needs(&run).is_ok());
        let silent = ["attach", "waitforattach", "mountdevice"];
        run.unsupported = silent.map(str::to_owned).into();
        assert!(needs(&run).is_ok(), "kubelet has no device to format");
    }
}
