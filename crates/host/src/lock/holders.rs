//! Records of lock holders. Each holder writes its record itself, into the lock file, which only root can write.
//!
//! /proc/locks is unreliable for this. It identifies a file by its inode number, which any process can reproduce on a
//! file system of its own, and it names only the process that took the lock first.

use super::{HINT_WIDTH, process::Process};
use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    process::Child,
    sync::{Arc, Mutex, PoisonError, Weak},
};

/// Offset of the record in the lock file, behind the hint.
const BEGIN: u64 = HINT_WIDTH as u64;

/// Upper limit of a record's length in bytes.
const MAX_LENGTH: usize = 4096;

/// Placeholder for a program that is about to be started.
const UNKNOWN: &str = "?";

/// Locks and programs of this process.
struct Ours {
    /// This process. Looked up again in a child, which has another process id.
    own: Option<Process>,
    records: Vec<Weak<File>>,
    /// Programs that inherited locks from this process.
    heirs: Vec<Process>,
    /// Number of programs being started, whose process ids are not known yet.
    starting: usize,
}

static OURS: Mutex<Ours> = Mutex::new(Ours {
    own: None,
    records: Vec::new(),
    heirs: Vec::new(),
    starting: 0,
});

/// Record in a lock file that this process holds the lock, until dropped. If the file cannot be written, other
/// processes only do not learn the holder.
#[derive(Debug)]
pub(super) struct Record(Arc<File>);

impl Record {
    /// Writes the record. The caller must hold the lock.
    pub(super) fn new(file: &Arc<File>) -> Self {
        change(|ours| ours.records.push(Arc::downgrade(file)));
        Record(Arc::clone(file))
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let mut ours = OURS.lock().unwrap_or_else(PoisonError::into_inner);
        ours.records
            .retain(|record| !record.ptr_eq(&Arc::downgrade(&self.0)));
        // A program that inherited the lock still holds it.
        write_or_log(&self.0, &ours.text(None));
    }
}

/// Starts a program that inherits locks. All records of this process name the program: it does not matter which locks
/// it inherited, because whoever waits for another one waits for this process anyway.
pub(crate) fn share(spawn: impl FnOnce() -> io::Result<Child>) -> io::Result<Child> {
    change(|ours| ours.starting += 1);
    let child = spawn();
    change(|ours| {
        ours.starting -= 1;
        ours.heirs.retain(|heir| heir.tasks().is_some());
        let heir = child
            .as_ref()
            .ok()
            .and_then(|child| Process::of(child.id()));
        ours.heirs.extend(heir);
    });
    child
}

fn change(what: impl FnOnce(&mut Ours)) {
    let mut ours = OURS.lock().unwrap_or_else(PoisonError::into_inner);
    what(&mut ours);
    ours.records.retain(|record| record.strong_count() > 0);
    let id = std::process::id();
    if ours.own.as_ref().is_none_or(|own| own.pid != id) {
        ours.own = Process::of(id);
    }
    let text = ours.text(ours.own.as_ref());
    for record in ours.records.iter().filter_map(Weak::upgrade) {
        write_or_log(&record, &text);
    }
}

impl Ours {
    fn text(&self, own: Option<&Process>) -> String {
        let known = own.into_iter().chain(&self.heirs).map(Process::to_string);
        let unknown = std::iter::repeat_n(UNKNOWN.to_owned(), self.starting);
        known.chain(unknown).map(|line| line + "\n").collect()
    }
}

fn write_or_log(file: &File, text: &str) {
    if let Err(error) = write(file, text) {
        log::debug!("a lock does not say who has it: {error}");
    }
}

/// Writes a record. Keeps the file's modification time, by which unused lock files are found.
fn write(file: &File, text: &str) -> io::Result<()> {
    let changed = file.metadata()?.modified()?;
    file.write_all_at(text.as_bytes(), BEGIN)?;
    file.set_len(BEGIN + text.len() as u64)?;
    file.set_modified(changed)
}

/// Returns the processes that hold a lock; `None` if they are not known.
pub(super) fn read(record: &File) -> Option<Vec<Process>> {
    let mut text = vec![0; MAX_LENGTH];
    let length = record.read_at(&mut text, BEGIN).ok()?;
    let text = str::from_utf8(text.get(..length)?).ok()?;
    text.lines().map(Process::parse).collect()
}

/// Returns the first recorded holder that still exists.
pub(super) fn first(record: &File) -> Option<Process> {
    let holders = read(record)?.into_iter();
    holders.into_iter().find(|holder| holder.tasks().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_whole_or_unknown() {
        let own = Process::of(std::process::id()).unwrap();
        let file = tempfile::tempfile().unwrap();
        assert_eq!(read(&file), Some(vec![]));
        file.write_all_at(b"7         \n", 0).unwrap();
        let before = file.metadata().unwrap().modified().unwrap();
        for text in [format!("{own}\n{own}\n"), format!("{own}\n")] {
            write(&file, &text).unwrap();
            assert_eq!(read(&file).unwrap().len(), text.lines().count());
            assert_eq!(first(&file), Some(own.clone()));
        }
        assert_eq!(file.metadata().unwrap().modified().unwrap(), before);
        for text in ["?\n", "7\n", "7 8 9\n", "-1 7\n", "\n", "7 \u{e9}\n"] {
            write(&file, &format!("{own}\n{text}")).unwrap();
            assert_eq!(read(&file), None, "{text:?}");
        }
    }
}
