//! Volumes as Kubernetes knows them, and their sources: an existing volume, commands of the vendor, images of
//! the tester, or the driver's own `provision`.

pub mod content;
pub mod format_and_mount;
pub mod image;
pub mod planted;

use crate::{
    callout::argument::{self, Options},
    config::Hooks,
};
use serde::{Deserialize, Serialize};
use std::{fs::File, path::PathBuf, sync::Arc};

/// Where volumes come from.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Source {
    /// The existing volume of the configuration.
    Existing,
    /// The vendor's commands make and remove them.
    Hooks,
    /// The tester makes images, and replaces `{image}` or `{device}` in options by their paths.
    Images,
    /// The driver's own `provision` and `delete`.
    Callouts,
    /// The configuration names no source.
    None,
}

impl Source {
    /// Returns the source in the configuration, or [`Source::None`] if only the driver can tell.
    pub fn of(options: &Options, hooks: &Hooks) -> Self {
        let template = |text: &String| text.contains("{image}") || text.contains("{device}");
        if !hooks.create.is_empty() {
            Source::Hooks
        } else if options.values().any(template) {
            Source::Images
        } else if !options.is_empty() {
            Source::Existing
        } else {
            Source::None
        }
    }

    /// Whether every check can make volumes of its own.
    pub fn is_fresh(&self) -> bool {
        matches!(self, Source::Hooks | Source::Images | Source::Callouts)
    }
}

/// The kind of directory on which a volume is mounted.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Stage {
    /// The pod's directory, mounted by `mount`.
    Pod,
    /// The node's directory, mounted by `mountdevice`.
    Node,
}

/// A release of Kubernetes, with the arguments that it passes.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Release {
    /// Neither the volume's name nor the pod; the old key of fsGroup.
    V1_6,
    /// The old key of fsGroup; growth on the node's directory.
    V1_13,
    /// The new key of fsGroup; growth on the pod's directory.
    V1_25,
}

/// A volume as Kubernetes knows it.
#[derive(Clone, Debug)]
pub struct Volume {
    pub name: String,
    pub options: Options,
    pub bytes: u64,
    pub fs_type: String,
    /// The file or device with its bytes, if the tester may access them.
    pub content: Option<PathBuf>,
    pub release: Release,
    /// The loop device of an image, which exists only while it is open.
    #[expect(dead_code, reason = "it is only kept open")]
    pub device: Option<Arc<File>>,
}

impl Volume {
    /// The JSON argument of every callout but `mount`.
    pub fn json(&self, mode: &str) -> String {
        argument::object(&self.members(mode))
    }

    pub fn members(&self, mode: &str) -> Options {
        let mut members = self.options.clone();
        members.insert(argument::FS_TYPE.to_owned(), self.fs_type.clone());
        members.insert(argument::READ_WRITE.to_owned(), mode.to_owned());
        if self.release > Release::V1_6 {
            members.insert(argument::NAME.to_owned(), self.name.clone());
        }
        members
    }

    /// The members of `mount`: also the pod, in releases that name it.
    pub fn mount_members(&self, mode: &str, uid: &str) -> Options {
        let mut members = self.members(mode);
        if self.release > Release::V1_6 {
            for (key, value) in [
                ("kubernetes.io/pod.name", "sanity"),
                (argument::NAMESPACE, "default"),
                ("kubernetes.io/pod.uid", uid),
                ("kubernetes.io/serviceAccount.name", "default"),
            ] {
                members.insert(key.to_owned(), value.to_owned());
            }
        }
        members
    }

    /// The JSON argument after a restart of kubelet (`ConstructVolumeSpec` in plugin.go).
    pub fn reconstructed(&self) -> String {
        let members = [
            (argument::NAME, self.name.as_str()),
            (argument::FS_TYPE, ""),
            (argument::READ_WRITE, "rw"),
        ];
        argument::object(
            &members
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        )
    }

    /// The same volume, in the arguments of another release.
    pub fn seen_by(&self, release: Release) -> Self {
        Volume {
            release,
            ..self.clone()
        }
    }
}
