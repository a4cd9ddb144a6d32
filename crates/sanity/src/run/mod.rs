//! The driver that is tested, and what is known of it.

mod arguments;
pub mod first_init;
mod undo;

use crate::{
    callout::{
        FOR_ATTACHING,
        argument::{self, Options},
        call::{Call, Manner},
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

/// Everything the checks of one run share.
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
    /// Part of every volume's name, so that runs do not meet.
    pub tag: String,
    /// The loop devices of others, with their files.
    pub loops: Vec<(PathBuf, String)>,
    /// Where what is made is written down; none where it is only undone.
    pub journal: Option<Journal>,
    /// How its first `init` went; none where nothing is checked.
    pub first: Option<FirstInit>,
    /// What the driver said of itself.
    pub capabilities: Capabilities,
    /// What it does not do at all.
    pub unsupported: BTreeSet<String>,
    /// What it called Not supported of a volume that does not exist, where there was none to ask with.
    pub unknown: BTreeSet<String>,
    /// The keys that options of its volumes have.
    pub option_keys: BTreeSet<String>,
    /// Options as its volumes have them, of a volume that does not exist.
    pub gone: Options,
    pub masks: Vec<String>,
    pub count: AtomicUsize,
    /// The tester's files could not be removed from a volume that stays.
    pub keeps_files: AtomicBool,
    pub tour: OnceLock<Tour>,
}

/// The very first `init`, and what was another afterwards.
#[derive(Debug)]
pub struct FirstInit {
    pub call: Call,
    pub changes: Vec<String>,
}

/// Every callout once or more, as all checks of the output look at them.
#[derive(Debug)]
pub struct Tour {
    pub calls: Vec<Call>,
    /// Which callouts it did not come to, and why.
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
            // Also as it stands in quotes of ours and of the driver's.
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
        // The longest first: one may be part of another.
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
            unknown: BTreeSet::new(),
            option_keys: config.options.keys().cloned().collect(),
            gone: Options::new(),
            masks,
            count: AtomicUsize::new(0),
            keeps_files: AtomicBool::new(false),
            tour: OnceLock::new(),
            config,
        }
    }

    /// A run that is over, to undo what it made.
    pub fn again(read: &Read, secrets: Options) -> Self {
        let mut run = Run::new(&read.header, secrets, None);
        run.source = read.source.clone();
        run.capabilities.attach = read.attach;
        run.unsupported = read.unsupported.clone();
        run
    }

    /// Writes down what is about to be made.
    pub fn record(&self, record: &Record) -> Result<()> {
        self.journal
            .as_ref()
            .map_or(Ok(()), |journal| journal.write(record))
    }

    /// A volume that does not exist, with options as those have that do.
    pub fn nobodys(&self) -> Volume {
        Volume {
            name: format!("sanity-{}-nobody", self.tag),
            options: self.gone.clone(),
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

    /// A volume that was made with these options.
    pub fn provisioned(&self, name: &str, options: Options) -> Result<Volume> {
        let template = self.config.volume.content.as_deref();
        let content = template
            .map(|template| content::locate(template, name, &options, &self.source))
            .transpose()?;
        Ok(Volume {
            name: name.to_owned(),
            content,
            options,
            ..self.unmade()
        })
    }

    /// This node, as `attach` gets it.
    pub fn node(&self) -> &str {
        self.config.node.as_deref().unwrap_or("sanity-node")
    }

    /// Another node: one that does not exist unless the configuration names one that does.
    pub fn other_node(&self) -> &str {
        let other = self.config.other_node.as_deref();
        other.unwrap_or("sanity-other-node")
    }

    /// Whether Kubernetes would call it of this driver.
    pub fn is_called(&self, callout: &str) -> bool {
        self.capabilities.attach || !FOR_ATTACHING.contains(&callout)
    }

    /// Whether Kubernetes would call it, and it is not known to be Not supported.
    pub fn supports(&self, callout: &str) -> bool {
        self.is_called(callout)
            && !self.unsupported.contains(callout)
            && !self.unknown.contains(callout)
    }

    /// Neither `mountdevice` nor `mount`: kubelet formats and mounts the device itself.
    pub fn mounts_nothing(&self) -> bool {
        !self.supports("mount") && !self.supports("mountdevice")
    }

    pub fn call(&self, argv: &[String], manner: &Manner) -> Result<Call> {
        exec::run(&self.executable, argv, manner, self.deadline)
    }
}
