//! The records of a journal, and the state that they add up to.

use crate::{
    callout::argument::Options,
    config::Config,
    volume::{Source, Stage},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

/// The properties of a run that are needed to undo what it made.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Header {
    pub executable: PathBuf,
    /// `vendor` and `driver`.
    pub name: (String, String),
    /// Without the volume's secrets, which are never written down.
    pub config: Config,
    pub bytes: u64,
    /// The tester's own directory.
    pub scratch: PathBuf,
    /// Part of every volume's name, which keeps runs apart.
    pub tag: String,
    /// Whether the run shares the machine's mount namespace.
    pub shared: bool,
    /// Loop devices with their files from before the run. None of them is removed.
    #[serde(default)]
    pub loops: Vec<(PathBuf, String)>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub enum Record {
    Run(Box<Header>),
    /// How volumes are made, whether the driver attaches, and which callouts it does not support.
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
        /// Made by the driver's `provision`, wherever the volumes of other checks come from.
        #[serde(default)]
        provisioned: bool,
    },
    /// The volume was made with these options.
    Options {
        name: String,
        options: Options,
    },
    /// The volume is about to be attached to this node.
    Attach {
        name: String,
        node: String,
    },
    /// Something is about to be mounted on this directory.
    Mount {
        directory: PathBuf,
        on: Stage,
    },
    /// Files are about to be written into an existing volume.
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

/// What may be left of a volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traces {
    pub bytes: u64,
    /// Made by the driver's `provision`, and removed by its `delete`.
    pub provisioned: bool,
    /// None while the volume is being made.
    pub options: Option<Options>,
    /// The nodes that it may be attached to.
    pub nodes: BTreeSet<String>,
    /// The volume may contain files of the tester.
    pub written: bool,
}

/// Everything that may be left of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Made {
    pub volumes: BTreeMap<String, Traces>,
    pub mounts: BTreeMap<PathBuf, Stage>,
}

impl Made {
    pub fn note(&mut self, record: &Record) {
        match record.clone() {
            Record::Run(_) | Record::Known { .. } => {}
            Record::Volume {
                name,
                bytes,
                provisioned,
            } => {
                let traces = self.volumes.entry(name).or_default();
                (traces.bytes, traces.provisioned) = (bytes, provisioned);
            }
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
