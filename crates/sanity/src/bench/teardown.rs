//! Cleanup at the end of a check, whatever state the driver left.

use super::{Bench, files, locked};
use crate::{
    callout::call::{Call, CallOptions},
    journal::record::{Made, Record},
    run::Run,
    system::cleanup,
    verdict::Stop,
    volume::Source,
};
use anyhow::{Context, Result};
use std::sync::{Mutex, PoisonError, atomic::Ordering};

/// What remains of a check after its cleanup.
#[derive(Debug)]
pub struct Closed {
    pub calls: Vec<Call>,
    pub notes: Vec<String>,
    /// Changes that [`Bench::record_changes`] recorded.
    pub changes: Vec<String>,
    /// Mounts and loop devices that the driver should have removed when it unmounted and detached.
    pub leftovers: Vec<String>,
    pub cleared: Result<()>,
}

fn unlocked<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Undoes everything that an earlier run made, including the tester's files in an existing volume.
pub fn undo_all(run: &Run, made: &Made) -> Result<()> {
    let undone = run.undo(made);
    if run.source == Source::Existing {
        let bench = Bench::new(run, "undo")?;
        bench.adopt(made.volumes.clone());
        bench.close(false).cleared?;
    }
    undone
}

impl Bench<'_> {
    /// Undoes everything that the check made, and removes what the driver left. Does nothing if `keep` is set,
    /// so that people can inspect it.
    pub fn close(self, keep: bool) -> Closed {
        let mut leftovers = Vec::new();
        let cleared = if keep {
            Ok(())
        } else {
            self.clear(&mut leftovers)
        };
        Closed {
            calls: unlocked(self.calls),
            notes: unlocked(self.notes),
            changes: unlocked(self.changes).unwrap_or_default(),
            leftovers,
            cleared,
        }
    }

    fn clear(&self, leftovers: &mut Vec<String>) -> Result<()> {
        self.restarting.store(false, Ordering::Relaxed);
        *locked(&self.call_options) = CallOptions::default();
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
                    first = first.and(self.run.call(&argv, &CallOptions::default()).map(drop));
                }
            }
        }
        leftovers.extend(cleanup::clear(&self.dir)?);
        for traces in made.volumes.values() {
            leftovers.extend(self.run.release(traces)?);
        }
        for (directory, _) in mounts.mounts {
            self.record(Record::Unmounted { directory })?;
        }
        for (name, mut traces) in made.volumes {
            // The nodes in the record were detached above.
            traces.nodes.clear();
            let removed = self.run.remove(&name, &traces);
            // An existing volume may be written to by any check. Its record stays until the files are
            // removed, so that the guard or the next run tries again.
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

    /// Removes the tester's files from an existing volume.
    ///
    /// # Errors
    /// When the files may still be there.
    fn unwrite(&self, made: &Made) -> Result<()> {
        let mut first = Ok(());
        for (name, traces) in &made.volumes {
            let options = traces.options.clone().filter(|_| traces.written);
            let Some(options) = options else { continue };
            let removed = (|| {
                let volume = self.run.provisioned(name, options)?;
                let mount_point = self.attach_and_mount(&volume, "sanity-last", "rw")?;
                let removed = files::remove(self, &mount_point);
                // If the driver fails to unmount, the caller's cleanup does.
                let _ = self.unmount_and_detach(&mount_point);
                removed
            })();
            let removed = removed.map_err(|stop: Stop| stop.error(&self.run.masks));
            first = first.and(removed.with_context(|| {
                format!("remove the directory {} from the volume", files::name(self))
            }));
        }
        first
    }
}
