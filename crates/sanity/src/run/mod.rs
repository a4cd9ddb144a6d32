//! The driver under test, and what is known about it.

mod arguments;
pub mod first_init;
mod undo;

use crate::{
    callout::{
        FOR_ATTACHING,
        argument::{self, Options},
        call::{Call, CallOptions},
        exec,
        reply::Capabilities,
    },
    config::Config,
    journal::{
        Journal, Read,
        record::{Header, Record},
    },
    volume::{Release, Source, Volume, content},
};
use anyhow::Result;
use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};

/// State that all checks of a run share.
#[derive(Debug)]
pub struct Run {
    pub executable: PathBuf,
    /// `vendor` and `driver`.
    pub name: (String, String),
    pub config: Config,
    pub source: Source,
    pub bytes: u64,
    pub deadline: Duration,
    /// The tester's own directory.
    pub scratch: PathBuf,
    /// Part of every volume's name, which keeps runs apart.
    pub tag: String,
    /// Loop devices from before the run, with their files.
    pub loops: Vec<(PathBuf, String)>,
    /// The journal. None for a run that only undoes an earlier one.
    pub journal: Option<Journal>,
    /// The driver's first `init`. None if no checks are run.
    pub first: Option<FirstInit>,
    /// The capabilities that the driver reported.
    pub capabilities: Capabilities,
    /// Callouts that the driver does not support.
    pub unsupported: BTreeSet<String>,
    /// Callouts that answered Not supported for a volume that does not exist, if no existing volume could be asked for.
    pub inconclusive: BTreeSet<String>,
    /// The keys in the options of its volumes.
    pub option_keys: BTreeSet<String>,
    /// Plausible options of a volume that does not exist.
    pub missing_options: Options,
    pub masks: Vec<String>,
    pub count: AtomicUsize,
    /// Set if the tester's files could not be removed from an existing volume.
    pub keeps_files: AtomicBool,
    pub tour: OnceLock<Tour>,
}

/// The driver's first `init`, and what it changed.
#[derive(Debug)]
pub struct FirstInit {
    pub call: Call,
    pub changes: Vec<String>,
}

/// A tour of all callouts, for the checks of output.
#[derive(Debug)]
pub struct Tour {
    pub calls: Vec<Call>,
    /// Why the tour ended early, if it did.
    pub cut: Option<String>,
}

impl Run {
    pub fn new(header: &Header, secrets: Options, journal: Option<Journal>) -> Self {
        let config = Config {
            secrets,
            ..header.config.clone()
        };
        let masks = config
            .secrets
            .values()
            // Also the escaped forms, as Rust's and JSON's quoting produce them.
            .flat_map(|value| {
                let quoted = format!("{value:?}");
                let json = serde_json::Value::from(value.as_str()).to_string();
                let inner = |text: String| text[1..text.len() - 1].to_owned();
                [
                    value.clone(),
                    argument::base64(value.as_bytes()),
                    inner(quoted),
                    inner(json),
                ]
            });
        let mut masks: Vec<_> = masks.filter(|mask| !mask.is_empty()).collect();
        // Longest first, because a secret may contain another one.
        masks.sort_by_key(|mask| std::cmp::Reverse(mask.len()));
        Run {
            executable: header.executable.clone(),
            name: header.name.clone(),
            source: Source::of(&config.options, &config.volume),
            bytes: header.bytes,
            deadline: Duration::from_secs(config.deadline.unwrap_or(120)),
            scratch: header.scratch.clone(),
            tag: header.tag.clone(),
            loops: header.loops.clone(),
            journal,
            first: None,
            capabilities: Capabilities::default(),
            unsupported: BTreeSet::new(),
            inconclusive: BTreeSet::new(),
            option_keys: config.options.keys().cloned().collect(),
            missing_options: Options::new(),
            masks,
            count: AtomicUsize::new(0),
            keeps_files: AtomicBool::new(false),
            tour: OnceLock::new(),
            config,
        }
    }

    /// Recreates an earlier run, to undo what it made.
    pub fn from_journal(read: &Read, secrets: Options) -> Self {
        let mut run = Run::new(&read.header, secrets, None);
        run.source = read.source.clone();
        run.capabilities.attach = read.attach;
        run.unsupported = read.unsupported.clone();
        run
    }

    /// Writes a record to the journal.
    pub fn record(&self, record: &Record) -> Result<()> {
        self.journal
            .as_ref()
            .map_or(Ok(()), |journal| journal.write(record))
    }

    /// Returns a volume that does not exist, with plausible options.
    pub fn missing_volume(&self) -> Volume {
        Volume {
            name: format!("sanity-{}-nobody", self.tag),
            options: self.missing_options.clone(),
            ..self.unmade()
        }
    }

    fn unmade(&self) -> Volume {
        Volume {
            name: String::new(),
            options: Options::new(),
            bytes: self.bytes,
            fs_type: self.config.fs_type.clone(),
            content: None,
            release: Release::V1_25,
            device: None,
        }
    }

    /// Returns the volume that was made with these options.
    pub fn provisioned(&self, name: &str, options: Options) -> Result<Volume> {
        let template = self.config.volume.content.as_deref();
        let content = template
            .map(|template| content::locate(template, name, &options, &self.source))
            .transpose()?;
        Ok(Volume {
            content,
            ..self.bare(name, options)
        })
    }

    /// Like [`Run::provisioned`], of which only the driver knows where its bytes are.
    pub fn bare(&self, name: &str, options: Options) -> Volume {
        Volume {
            name: name.to_owned(),
            options,
            ..self.unmade()
        }
    }

    /// The name of this node, for `attach`.
    pub fn node(&self) -> &str {
        self.config.node.as_deref().unwrap_or("sanity-node")
    }

    /// The name of another node, which exists only if the configuration names one.
    pub fn other_node(&self) -> &str {
        let other = self.config.other_node.as_deref();
        other.unwrap_or("sanity-other-node")
    }

    /// Whether Kubernetes would make this callout for the driver.
    pub fn is_called(&self, callout: &str) -> bool {
        self.capabilities.attach || !FOR_ATTACHING.contains(&callout)
    }

    /// Whether Kubernetes would make this callout, and the driver is not known to answer Not supported.
    pub fn supports(&self, callout: &str) -> bool {
        self.is_called(callout)
            && !self.unsupported.contains(callout)
            && !self.inconclusive.contains(callout)
    }

    /// Whether kubelet formats and mounts the device itself, because the driver has neither `mountdevice` nor `mount`.
    pub fn mounts_nothing(&self) -> bool {
        !self.supports("mount") && !self.supports("mountdevice")
    }

    pub fn call(&self, argv: &[String], options: &CallOptions) -> Result<Call> {
        exec::run(&self.executable, argv, options, self.deadline)
    }
}
