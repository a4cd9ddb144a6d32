//! What a run makes outside its own directory, written down before it is made, so that whoever comes
//! after it (its guard, or the next run) can undo it. One JSON object a line; the file is locked as long as
//! the run is watched over.

use crate::{bench::On, callout::argument::Options, config::Config, volume::Source};
use anyhow::{Context, Result, ensure};
use nix::{
    fcntl::{Flock, FlockArg, OFlag},
    unistd::{geteuid, getuid},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, DirBuilder, File, OpenOptions},
    io::{BufRead, BufReader, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// What a run is, as far as one needs it to undo what it made.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Header {
    pub executable: PathBuf,
    /// `vendor` and `driver`.
    pub name: (String, String),
    /// Without the volume's secrets, which are nowhere written down.
    pub config: Config,
    pub bytes: u64,
    /// The tester's own directory.
    pub scratch: PathBuf,
    /// Part of every volume's name, so that runs do not meet.
    pub tag: String,
    /// Whether the run stays among the machine's mounts.
    pub shared: bool,
    /// The loop devices that there were before, with their files: none of them is the run's.
    #[serde(default)]
    pub loops: Vec<(PathBuf, String)>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub enum Record {
    Run(Box<Header>),
    /// How volumes are had, whether the driver attaches, and what it does not do.
    Known {
        source: Source,
        attach: bool,
        #[serde(default)]
        unsupported: BTreeSet<String>,
    },
    /// A volume of this name and size is about to be made.
    Volume {
        name: String,
        bytes: u64,
    },
    /// It was made with these options.
    Options {
        name: String,
        options: Options,
    },
    /// It is about to be attached to this node.
    Attach {
        name: String,
        node: String,
    },
    /// Something is about to be mounted on this directory.
    Mount {
        directory: PathBuf,
        on: On,
    },
    /// Files are about to be written into the volume, which stays.
    Wrote {
        name: String,
    },
    /// Nothing is mounted on this directory any more.
    Unmounted {
        directory: PathBuf,
    },
    /// Nothing is left of the volume.
    Gone {
        name: String,
    },
}

/// A volume of which something may be there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traces {
    pub bytes: u64,
    /// None while it is being made.
    pub options: Option<Options>,
    /// The nodes that it may be attached to.
    pub nodes: BTreeSet<String>,
    /// There may be files of the tester's in it.
    pub written: bool,
}

/// What may be there, by the records so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Made {
    pub volumes: BTreeMap<String, Traces>,
    pub mounts: BTreeMap<PathBuf, On>,
}

impl Made {
    pub fn note(&mut self, record: &Record) {
        match record.clone() {
            Record::Run(_) | Record::Known { .. } => {}
            Record::Volume { name, bytes } => self.volumes.entry(name).or_default().bytes = bytes,
            Record::Options { name, options } => {
                self.volumes.entry(name).or_default().options = Some(options);
            }
            Record::Attach { name, node } => {
                self.volumes.entry(name).or_default().nodes.insert(node);
            }
            Record::Mount { directory, on } => {
                self.mounts.insert(directory, on);
            }
            Record::Wrote { name } => self.volumes.entry(name).or_default().written = true,
            Record::Unmounted { directory } => {
                self.mounts.remove(&directory);
            }
            Record::Gone { name } => {
                self.volumes.remove(&name);
            }
        }
    }
}

/// The records of a run that is over.
#[derive(Debug)]
pub struct Read {
    pub header: Header,
    pub source: Source,
    pub attach: bool,
    pub unsupported: BTreeSet<String>,
    pub made: Made,
}

/// A file of records that is added to.
#[derive(Debug)]
pub struct Journal(Mutex<File>);

impl Journal {
    /// The journal of this run, which its guard has made.
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
    /// When it cannot be written: then what was to be recorded must not be made.
    pub fn write(&self, record: &Record) -> Result<()> {
        let mut line = serde_json::to_vec(record).context("write a record")?;
        line.push(b'\n');
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&line).context("write to the journal")
    }
}

/// Where journals are: a directory of this user's that nobody else can write to, for what stands in
/// them is run.
///
/// # Errors
/// When there is none and none can be made, or it is somebody else's.
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

/// A journal that was begun, with its lock.
///
/// # Errors
/// When it cannot be made.
pub fn begin(directory: &Path, header: &Header) -> Result<(PathBuf, Flock<File>)> {
    let path = directory.join(format!("{}.jsonl", header.tag));
    let new = || {
        OpenOptions::new()
            .create_new(true)
            .append(true)
            .mode(0o600)
            .open(&path)
    };
    let file = new()
        .or_else(|_| {
            // A run that has just ended may have taken the empty directory with it.
            DirBuilder::new().mode(0o700).create(directory)?;
            new()
        })
        .with_context(|| format!("make the journal {}", path.display()))?;
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|(_, error)| error)
        .context("lock the journal")?;
    Journal::open(&path)?.write(&Record::Run(Box::new(header.clone())))?;
    lock.sync_all().context("sync the journal")?;
    Ok((path, lock))
}

/// The journals that nobody watches over, each with its lock: their runs are over.
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
        // It may have been removed by its own run.
        let Ok(file) = opened else { continue };
        if let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            && path.exists()
        {
            found.push((path, lock));
        }
    }
    Ok(found)
}

/// Reads a journal; its last line may be cut.
///
/// # Errors
/// When it cannot be read, or does not begin with a run.
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
pub fn header(scratch: &Path) -> Header {
    Header {
        executable: "/bin/driver".into(),
        name: ("example.com".to_owned(), "driver".to_owned()),
        config: Config::default(),
        bytes: 1,
        scratch: scratch.to_owned(),
        tag: "0123abcd".to_owned(),
        shared: false,
        loops: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            },
            Record::Volume {
                name: name("b"),
                bytes: 7,
            },
            Record::Attach {
                name: name("a"),
                node: name("n"),
            },
            Record::Mount {
                directory: "/d".into(),
                on: On::Pod,
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
        assert_eq!(read.made.mounts, [("/d".into(), On::Pod)].into());
        let traces = Traces {
            bytes: 7,
            nodes: [name("n")].into(),
            ..Traces::default()
        };
        assert_eq!(read.made.volumes, [(name("a"), traces)].into());
    }

    #[test]
    fn journals_that_others_could_write_are_not_read() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(directory(Some(place.path())).is_err());
    }
}
