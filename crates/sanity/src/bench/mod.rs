//! The environment of a check: it records the driver's calls and what they made, and undoes that at the end
//! whatever the driver left.

pub mod changes;
pub mod files;
mod lifecycle;
pub mod provisioned;
mod requirements;
pub mod sandbox;
pub mod teardown;
pub mod tour;
pub mod victim;
mod volumes;

use crate::{
    bench::changes::{ChangeScope, Snapshot},
    callout::{
        argument::{self, Options},
        call::{Call, CallOptions},
    },
    journal::record::{Made, Record, Traces},
    run::Run,
    system,
    verdict::{Stop, wrong},
    volume::{Stage, Volume},
};
use anyhow::{Context, Result};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// A directory of kubelet's on which a volume is mounted.
#[derive(Clone, Debug)]
pub struct MountPoint {
    pub volume: Volume,
    pub uid: String,
    pub dir: PathBuf,
    pub stage: Stage,
    /// The device that `waitforattach` returned.
    pub device: String,
}

/// State of one check.
#[derive(Debug)]
pub struct Bench<'a> {
    pub run: &'a Run,
    pub dir: PathBuf,
    calls: Mutex<Vec<Call>>,
    volumes: Mutex<Vec<Volume>>,
    made: Mutex<Made>,
    notes: Mutex<Vec<String>>,
    call_options: Mutex<CallOptions>,
    before: Snapshot,
    /// Changes since `before`, as [`Bench::record_changes`] found them.
    changes: Mutex<Option<Vec<String>>>,
    /// Simulates a restart of kubelet after every callout.
    restarting: AtomicBool,
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
            call_options: Mutex::default(),
            before: Snapshot::now()?,
            changes: Mutex::default(),
            restarting: AtomicBool::new(false),
        })
    }

    /// Adds a line to the report, such as a measurement.
    pub fn note(&self, text: impl Into<String>) {
        locked(&self.notes).push(text.into());
    }

    /// Records, once, what changed since the check began, before cleanup removes it.
    pub fn record_changes(&self) -> Result<()> {
        self.record_changes_since(&self.before)
    }

    /// Like [`Bench::record_changes`], for a check that has a mount namespace of its own or changed its mounts.
    pub fn record_changes_since(&self, before: &Snapshot) -> Result<()> {
        let mut changes = locked(&self.changes);
        if changes.is_none() {
            let scope = ChangeScope {
                scratch: &self.run.scratch,
                directory: &self.dir,
                made: &locked(&self.made),
            };
            *changes = Some(before.changes(&Snapshot::now()?, &scope));
        }
        Ok(())
    }

    /// Writes a record to the journal unless it adds nothing.
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

    /// Takes over volumes that other checks or an earlier run made, to undo them.
    pub fn adopt(&self, volumes: BTreeMap<String, Traces>) {
        locked(&self.made).volumes = volumes;
    }

    pub fn traces(&self, volume: &str) -> Traces {
        let made = locked(&self.made);
        made.volumes.get(volume).cloned().unwrap_or_default()
    }

    /// Keeps a volume until the check ends, and with it the open descriptor of its device.
    pub fn keep(&self, volume: Volume) {
        locked(&self.volumes).push(volume);
    }

    pub fn let_go(&self, volume: &Volume) {
        locked(&self.volumes).retain(|other| other.name != volume.name);
    }

    pub fn call<S: AsRef<str>>(&self, argv: &[S]) -> Result<Call, Stop> {
        let options = locked(&self.call_options).clone();
        self.call_with_options(argv, &options)
    }

    /// Sets the options of all calls from here on.
    pub fn set_call_options(&self, options: CallOptions) {
        *locked(&self.call_options) = options;
    }

    /// Simulates a restart of kubelet after every callout from here on.
    pub fn restart_always(&self) {
        self.restarting.store(true, Ordering::Relaxed);
    }

    pub fn call_with_options<S: AsRef<str>>(
        &self,
        argv: &[S],
        options: &CallOptions,
    ) -> Result<Call, Stop> {
        let argv: Vec<_> = argv.iter().map(|word| word.as_ref().to_owned()).collect();
        self.expect_traces(&argv)?;
        let call = self.run.call(&argv, options)?;
        locked(&self.calls).push(call.clone());
        if self.restarting.load(Ordering::Relaxed) {
            self.restarted()?;
        }
        Ok(call)
    }

    /// Makes the callouts that a restarted kubelet makes first.
    fn restarted(&self) -> Result<(), Stop> {
        let mut calls = vec![vec!["init".to_owned()]];
        for volume in locked(&self.volumes).iter() {
            calls.push(vec!["getvolumename".to_owned(), volume.reconstructed()]);
        }
        for argv in calls {
            let call = self.run.call(&argv, &CallOptions::default())?;
            locked(&self.calls).push(call.clone());
            if !call.succeeded() && (argv[0] == "init" || !call.not_supported()) {
                let expected = "Success, as before kubelet restarted";
                return Err(wrong(&call, expected, "something else"));
            }
        }
        Ok(())
    }

    /// Records in the journal, before a call, what the call may leave.
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
                        Stage::Pod
                    } else {
                        Stage::Node
                    },
                })
            }
            _ => Ok(()),
        }
    }

    /// Records that one of the check's own volumes may be attached to a node.
    pub fn expect_attached(&self, volume: &str, node: &str) -> Result<()> {
        if !locked(&self.made).volumes.contains_key(volume) {
            return Ok(());
        }
        self.record(Record::Attach {
            name: volume.to_owned(),
            node: node.to_owned(),
        })
    }

    /// The root directory of the simulated kubelet.
    pub fn root(&self) -> PathBuf {
        self.dir.join("kubelet")
    }
}
