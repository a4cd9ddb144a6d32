//! The driver that is tested, what is known of it, and the arguments it gets.

use crate::{
    callout::{
        FOR_ATTACHING,
        argument::{self, Options},
        call::{Call, Manner},
        exec,
        reply::Capabilities,
    },
    config::Config,
    first::First,
    journal::{Header, Journal, Read, Record},
    tour::Tour,
    volume::{self, Release, Source, Volume},
};
use anyhow::Result;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
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
    pub first: Option<First>,
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
            .map(|template| volume::content(template, name, &options, &self.source))
            .transpose()?;
        Ok(Volume {
            name: name.to_owned(),
            content,
            options,
            ..self.unmade()
        })
    }

    /// The arguments of a callout for it, on this directory.
    pub fn nobody(&self, callout: &str, directory: &Path) -> Vec<String> {
        self.arguments(callout, &self.nobodys(), directory, "")
    }

    /// The arguments of a callout, in the order of Kubernetes 1.6 to 1.37.
    pub fn arguments(
        &self,
        callout: &str,
        volume: &Volume,
        directory: &Path,
        device: &str,
    ) -> Vec<String> {
        let json = || volume.json("rw");
        let node = self.node().to_owned();
        let directory = directory.to_string_lossy().into_owned();
        let size = volume.bytes.to_string();
        let rest = match callout {
            "getvolumename" => vec![json()],
            "attach" | "isattached" => vec![json(), node],
            "waitforattach" => vec![device.to_owned(), json()],
            "mountdevice" => vec![directory, device.to_owned(), json()],
            "mount" => vec![
                directory,
                argument::object(&volume.mount_members("rw", "sanity-pod")),
            ],
            "unmount" | "unmountdevice" => vec![directory],
            "detach" => vec![volume.name.clone(), node],
            "expandvolume" => vec![json(), directory, size.clone(), size],
            "expandfs" => vec![json(), device.to_owned(), directory, size.clone(), size],
            _ => Vec::new(),
        };
        std::iter::once(callout.to_owned()).chain(rest).collect()
    }

    /// What `mount` gets of the volume's secret.
    pub fn secrets(&self) -> Options {
        let secrets = self.config.secrets.iter();
        let coded = secrets.map(|(key, value)| {
            (
                format!("{}{key}", argument::SECRET),
                argument::base64(value.as_bytes()),
            )
        });
        coded.collect()
    }

    /// The arguments of the driver's own `provision`.
    pub fn provision(&self, name: &str, bytes: u64) -> Vec<String> {
        let up = |shift: u32| bytes.div_ceil(1 << shift).to_string();
        let mut members = self.config.volume.parameters.clone();
        for (key, value) in [
            (argument::NAME, name.to_owned()),
            ("kubernetes.io/pvc.namespace", "default".to_owned()),
            ("requestBytes", bytes.to_string()),
            ("requestMiB", up(20)),
            ("requestGiB", up(30)),
        ] {
            members.insert(key.to_owned(), value);
        }
        if !self.config.fs_type.is_empty() {
            members.insert(argument::FS_TYPE.to_owned(), self.config.fs_type.clone());
        }
        vec!["provision".to_owned(), argument::object(&members)]
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
