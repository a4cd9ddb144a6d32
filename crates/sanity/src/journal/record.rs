//! The records of a journal, and what may be there by them.

use crate::{
    callout::argument::Options,
    config::Config,
    volume::{On, Source},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
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

#[cfg(test)]
pub fn header(scratch: &std::path::Path) -> Header {
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
