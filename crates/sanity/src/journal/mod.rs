//! The journal: a record of everything that a run makes outside its own directory, written before it is made, so
//! that its guard or the next run can undo it. One JSON object a line. The guard keeps the file locked as long
//! as it watches the run.

pub mod record;

use crate::{
    journal::record::{Header, Made, Record},
    volume::Source,
};
use anyhow::{Context, Result, ensure};
use nix::{
    fcntl::{Flock, FlockArg, OFlag},
    unistd::{geteuid, getuid},
};
use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{BufRead, BufReader, ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// The journal of a run that has ended.
#[derive(Debug)]
pub struct Read {
    pub header: Header,
    pub source: Source,
    pub attach: bool,
    pub unsupported: BTreeSet<String>,
    pub made: Made,
}

/// A journal to which records are appended.
#[derive(Debug)]
pub struct Journal(Mutex<File>);

impl Journal {
    /// Opens the journal of this run, which its guard has made.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .append(true)
            .open(path)
            .with_context(|| format!("open the journal {}", path.display()))?;
        Ok(Journal(Mutex::new(file)))
    }

    /// # Errors
    /// When it cannot be written. Then the caller must not make what the record announces.
    pub fn write(&self, record: &Record) -> Result<()> {
        let mut line = serde_json::to_vec(record).context("write a record")?;
        line.push(b'\n');
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&line).context("write to the journal")
    }
}

/// Returns the directory of journals. It belongs to this user and only this user can write to it, because
/// commands in journals are run.
///
/// # Errors
/// When it does not exist and cannot be made, or belongs to another user.
pub fn directory(given: Option<&Path>) -> Result<PathBuf> {
    let path = match given {
        Some(path) => std::path::absolute(path).context("find the directory of journals")?,
        None if geteuid().is_root() => "/var/lib/flexvol-sanity".into(),
        None => std::env::temp_dir().join(format!("flexvol-sanity-{}", getuid())),
    };
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
    made.with_context(|| format!("make the directory of journals {}", path.display()))?;
    let found = fs::symlink_metadata(&path).context("look at the directory of journals")?;
    ensure!(
        found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0,
        "{} must be a directory of yours that nobody else can write to",
        path.display()
    );
    Ok(path)
}

/// Begins a journal, and locks it.
///
/// # Errors
/// When it cannot be made.
pub fn begin(directory: &Path, header: &Header) -> Result<(PathBuf, Flock<File>)> {
    let path = directory.join(format!("{}.jsonl", header.tag));
    loop {
        let lock = create(directory, &path)?;
        // Before it was locked, another run may have removed it as an abandoned journal.
        if !is_at(&lock, &path)? {
            continue;
        }
        Journal::open(&path)?.write(&Record::Run(Box::new(header.clone())))?;
        lock.sync_all().context("sync the journal")?;
        return Ok((path, lock));
    }
}

fn create(directory: &Path, path: &Path) -> Result<Flock<File>> {
    let new = || {
        OpenOptions::new()
            .create_new(true)
            .append(true)
            .mode(0o600)
            .open(path)
    };
    let file = new()
        .or_else(|_| {
            // Another run that just ended may have removed the empty directory.
            DirBuilder::new().mode(0o700).create(directory)?;
            new()
        })
        .with_context(|| format!("make the journal {}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .context("lock the journal")
}

fn is_at(file: &File, path: &Path) -> Result<bool> {
    let opened = file.metadata().context("look at the journal")?;
    match fs::symlink_metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (opened.dev(), opened.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).context("look at the journal"),
    }
}

/// Returns the journals without a guard, each with its lock. Their runs have ended.
///
/// # Errors
/// When the directory cannot be listed.
pub fn abandoned(directory: &Path) -> Result<Vec<(PathBuf, Flock<File>)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).context("list the journals")? {
        let path = entry.context("list the journals")?.path();
        if path.extension().is_none_or(|end| end != "jsonl") {
            continue;
        }
        let flags = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits())
            .open(&path);
        // Its own run may have removed it.
        let Ok(file) = opened else { continue };
        let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
            continue;
        };
        if !is_at(&lock, &path)? {
            continue;
        }
        if lock.metadata().context("look at a journal")?.len() == 0 {
            // Its run has made nothing yet, and begins another journal if it is still alive.
            fs::remove_file(&path).context("remove an empty journal")?;
            continue;
        }
        found.push((path, lock));
    }
    Ok(found)
}

/// Reads a journal. Its last line may be truncated.
///
/// # Errors
/// When it cannot be read, or does not begin with a header.
pub fn read(path: &Path) -> Result<Read> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let mut header = None;
    let (mut source, mut attach, mut unsupported) = (Source::None, false, BTreeSet::new());
    let mut made = Made::default();
    for line in BufReader::new(file).lines() {
        let line = line.context("read a journal")?;
        let Ok(record) = serde_json::from_str::<Record>(&line) else {
            break;
        };
        match record {
            Record::Run(run) => header = Some(*run),
            Record::Known {
                source: told,
                attach: attaches,
                unsupported: not,
            } => (source, attach, unsupported) = (told, attaches, not),
            other => made.note(&other),
        }
    }
    Ok(Read {
        header: header.with_context(|| format!("{} does not begin with a run", path.display()))?,
        source,
        attach,
        unsupported,
        made,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        journal::record::{Traces, header},
        volume::Stage,
    };

    #[test]
    fn what_was_begun_and_not_ended_is_what_may_be_there() {
        let place = tempfile::tempdir().unwrap();
        let (path, lock) = begin(place.path(), &header(Path::new("/nowhere"))).unwrap();
        let journal = Journal::open(&path).unwrap();
        let name = |text: &str| text.to_owned();
        for record in [
            Record::Known {
                source: Source::Existing,
                attach: true,
                unsupported: [name("mount")].into(),
            },
            Record::Volume {
                name: name("a"),
                bytes: 7,
                provisioned: false,
            },
            Record::Volume {
                name: name("b"),
                bytes: 7,
                provisioned: false,
            },
            Record::Attach {
                name: name("a"),
                node: name("n"),
            },
            Record::Mount {
                directory: "/d".into(),
                on: Stage::Pod,
            },
            Record::Gone { name: name("b") },
        ] {
            journal.write(&record).unwrap();
        }
        fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"{\"Volume\":{\"na")
            .unwrap();
        assert!(abandoned(place.path()).unwrap().is_empty(), "it is locked");
        drop(lock);
        assert_eq!(abandoned(place.path()).unwrap().len(), 1);
        let read = read(&path).unwrap();
        assert_eq!(read.header.tag, "0123abcd");
        let known = (&read.source, read.attach, &read.unsupported);
        assert_eq!(known, (&Source::Existing, true, &[name("mount")].into()));
        assert_eq!(read.made.mounts, [("/d".into(), Stage::Pod)].into());
        let traces = Traces {
            bytes: 7,
            nodes: [name("n")].into(),
            ..Traces::default()
        };
        assert_eq!(read.made.volumes, [(name("a"), traces)].into());
    }

    #[test]
    fn a_run_begins_while_others_look_for_what_was_given_up() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let place = tempfile::tempdir().unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert!(abandoned(place.path()).unwrap().is_empty());
                }
            });
            for _ in 0..2000 {
                let begun = begin(place.path(), &header(Path::new("/nowhere")));
                over.store(begun.is_err(), Ordering::Relaxed);
                let (path, lock) = begun.unwrap();
                fs::remove_file(path).unwrap();
                drop(lock);
            }
            over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn journals_that_others_could_write_are_not_read() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(directory(Some(place.path())).is_err());
    }
}
