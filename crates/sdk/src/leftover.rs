//! Notes of processes that were killed and stay, because they wait in the kernel for something that may never answer.
//!
//! Repeating what such a process did would only leave a second one behind, so whoever is about to repeat it looks for
//! its note first. The notes are in /run, because no process survives a reboot.

use std::{
    fs::{self, DirBuilder},
    hash::{DefaultHasher, Hash, Hasher},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

const DIRECTORY: &str = "/run/flexvol/left";

/// The note of a process that may be left behind, named after what the process does.
#[derive(Clone, Debug)]
pub struct LeftoverNote(PathBuf);

impl LeftoverNote {
    /// Returns the note of a process that does `what`, which must differ from what all other processes of the node
    /// do, those of other drivers included.
    pub fn of(what: impl Hash) -> LeftoverNote {
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        LeftoverNote(Path::new(DIRECTORY).join(format!("{:016x}", hasher.finish())))
    }

    /// Returns the id of the process that was left behind with this note, if it still exists. Removes the notes of
    /// processes that have ended.
    #[must_use]
    pub fn process(&self) -> Option<String> {
        let mut found = None;
        for note in fs::read_dir(self.0.parent()?).ok()?.flatten() {
            let text = fs::read_to_string(note.path()).unwrap_or_default();
            // Its writer has not finished.
            let Some((process, began)) = text.split_once(' ') else {
                continue;
            };
            if began_of(process).is_none_or(|now| now != began) {
                let _ = fs::remove_file(note.path());
            } else if note.path() == self.0 {
                found = Some(process.to_owned());
            }
        }
        found
    }

    /// Notes that this process is left behind, unless it has ended.
    pub fn record(&self, process: u32) {
        let process = process.to_string();
        let Some(began) = began_of(&process) else {
            return;
        };
        if let Err(error) = self.write(&format!("{process} {began}")) {
            log::warn!("whoever repeats what process {process} did will wait, too: {error}");
        }
    }

    fn write(&self, text: &str) -> io::Result<()> {
        if let Some(directory) = self.0.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)?;
        }
        fs::write(&self.0, text)
    }
}

/// Returns when a running process started, which tells it from a later process with the same id; `None` if it has
/// ended. This is the 20th field after the name in `/proc/PID/stat`, counting the state as the first
/// (fs/proc/array.c, `do_task_stat`).
fn began_of(process: &str) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    if fields.trim_start().starts_with(['Z', 'X']) {
        return None;
    }
    fields.split_whitespace().nth(19).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, id};

    #[test]
    fn a_process_is_told_by_when_it_began() {
        let own = began_of(&id().to_string()).unwrap();
        assert!(own.parse::<u64>().unwrap() > 0);
        assert_eq!(began_of("no-process"), None);
    }

    #[test]
    fn a_process_is_found_by_its_own_note_until_it_ends() {
        let directory = tempfile::tempdir().unwrap();
        let [left, other] =
            ["left/a", "left/b"].map(|name| LeftoverNote(directory.path().join(name)));
        assert_eq!(left.process(), None);
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        left.record(child.id());
        assert_eq!(left.process(), Some(child.id().to_string()));
        assert_eq!(other.process(), None);
        // A later process with the same id.
        left.write(&format!("{} 1", id())).unwrap();
        assert_eq!(left.process(), None);
        assert!(!left.0.exists());
        left.record(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(left.process(), None);
        left.record(child.id());
        assert!(!left.0.exists());
    }
}
