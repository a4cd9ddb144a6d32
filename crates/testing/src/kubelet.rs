//! Kubelet's part of a callout: its directories and its JSON.

use crate::{Call, Driver, Outcome, Sandbox};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::{collections::BTreeMap, fs, os::unix::fs::DirBuilderExt, path::PathBuf};

/// A persistent volume as Kubernetes knows it: its name, and the options in the reply to `provision`.
#[derive(Clone, Debug)]
pub struct PersistentVolume {
    /// The name of the persistent volume.
    pub name: String,
    /// File system type: `ext4`, `xfs` …
    pub filesystem: &'static str,
    /// Options of its FlexVolume source.
    pub options: BTreeMap<String, String>,
}

impl PersistentVolume {
    /// Has the driver provision a volume for a claim in the namespace `default`.
    ///
    /// # Panics
    /// When the driver fails.
    #[must_use]
    pub fn provision(driver: &Driver, name: &str, filesystem: &'static str, bytes: u64) -> Self {
        let call = driver
            .call(&["provision", &request_of(name, filesystem, bytes)])
            .success();
        Self::from_reply(name, filesystem, &call)
    }

    /// Returns the volume in the reply to `provision`.
    ///
    /// # Panics
    /// When the reply has no options.
    #[must_use]
    pub fn from_reply(name: &str, filesystem: &'static str, call: &Call) -> Self {
        let object = call.object().expect("a reply");
        let options = object["options"].as_object().expect("options in the reply");
        let text = |value: &Value| value.as_str().expect("options are strings").to_owned();
        PersistentVolume {
            name: name.to_owned(),
            filesystem,
            options: options
                .iter()
                .map(|(key, value)| (key.clone(), text(value)))
                .collect(),
        }
    }

    /// Returns the volume's handle.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn handle(&self) -> &str {
        &self.options["handle"]
    }

    /// Returns the volume id.
    #[must_use]
    pub fn id(&self) -> String {
        volume_id(self.handle())
    }

    /// Returns the path of the volume's image in the pool.
    #[must_use]
    pub fn image(&self, sandbox: &Sandbox) -> PathBuf {
        sandbox.pool().join("volumes").join(self.id())
    }

    /// Returns the path of a directory volume's root, which pods get.
    #[must_use]
    pub fn root(&self, sandbox: &Sandbox) -> PathBuf {
        self.image(sandbox).join(self.id())
    }

    /// Returns the JSON argument of every callout but `mount`.
    #[must_use]
    pub fn json(&self, mode: &str) -> String {
        self.json_with(mode, &[])
    }

    /// Returns the JSON argument with additional keys, as for `mount`.
    #[must_use]
    pub fn json_with(&self, mode: &str, more: &[(&str, &str)]) -> String {
        let built_in = [
            ("kubernetes.io/fsType", self.filesystem),
            ("kubernetes.io/pvOrVolumeName", &self.name),
            ("kubernetes.io/readwrite", mode),
        ];
        let options = self
            .options
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()));
        json(
            built_in
                .into_iter()
                .chain(options)
                .chain(more.iter().copied()),
        )
    }
}

/// Returns the volume id of a handle: `printf %s HANDLE | sha256sum | head -c 32`.
#[must_use]
pub fn volume_id(handle: &str) -> String {
    let digest = Sha256::digest(handle);
    digest[..16]
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Returns the JSON argument of `provision`, for a claim in the namespace `default`.
#[must_use]
pub fn request(name: &str, bytes: u64) -> String {
    request_of(name, "", bytes)
}

/// Returns the same for a class with this file system type, unless it is empty.
fn request_of(name: &str, filesystem: &str, bytes: u64) -> String {
    let bytes = bytes.to_string();
    let class = (!filesystem.is_empty()).then_some(("fsType", filesystem));
    let claim = [
        ("kubernetes.io/pvOrVolumeName", name),
        ("kubernetes.io/pvc.namespace", "default"),
        ("requestBytes", &bytes),
    ];
    json(claim.into_iter().chain(class))
}

/// A pod of the namespace `default` that uses one volume of a driver without attach.
#[derive(Clone, Debug)]
pub struct Pod<'a> {
    driver: &'a Driver,
    volume: &'a PersistentVolume,
    uid: String,
    dir: PathBuf,
}

impl<'a> Pod<'a> {
    /// Returns a pod on this sandbox's node.
    #[must_use]
    pub fn new(
        sandbox: &Sandbox,
        driver: &'a Driver,
        volume: &'a PersistentVolume,
        uid: &str,
    ) -> Self {
        let volumes = sandbox
            .kubelet_root()
            .join("pods")
            .join(uid)
            .join("volumes");
        Pod {
            driver,
            volume,
            uid: uid.to_owned(),
            dir: volumes
                .join(driver.name().replace('/', "~"))
                .join(&volume.name),
        }
    }

    /// Returns the pod's directory for the volume.
    #[must_use]
    pub fn dir(&self) -> &PathBuf {
        &self.dir
    }

    /// Creates the pod's directory as kubelet does, and returns the arguments of `mount`.
    ///
    /// # Panics
    /// When the directory cannot be created.
    #[must_use]
    pub fn mount_arguments(&self, mode: &str) -> Vec<String> {
        let mut builder = fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o750).create(&self.dir);
        made.expect("make the pod's directory");
        let more = [
            ("kubernetes.io/pod.name", "pod"),
            ("kubernetes.io/pod.namespace", "default"),
            ("kubernetes.io/pod.uid", &self.uid),
            ("kubernetes.io/serviceAccount.name", ""),
        ];
        vec![
            "mount".to_owned(),
            self.text(),
            self.volume.json_with(mode, &more),
        ]
    }

    /// Makes the callout `mount`. After a failure the directory is removed, as kubelet does.
    #[must_use]
    pub fn mount(&self, mode: &str) -> Call {
        let call = self.driver.call(&self.mount_arguments(mode));
        if call.outcome() != Outcome::Success {
            // Kubelet ignores this error too: a directory that is not empty stays.
            let _ = fs::remove_dir(&self.dir);
        }
        call
    }

    /// Makes the callout `unmount` and removes the directory, which must be empty then.
    ///
    /// # Panics
    /// When the driver succeeds and the directory cannot be removed.
    #[must_use]
    pub fn unmount(&self) -> Call {
        let call = self.driver.call(&["unmount".to_owned(), self.text()]);
        if call.outcome() == Outcome::Success && self.dir.exists() {
            fs::remove_dir(&self.dir).expect("remove the pod's directory after unmount");
        }
        call
    }

    /// Returns the arguments of `expandfs`, for a driver without attach.
    #[must_use]
    pub fn expand_arguments(&self, new: u64, old: u64) -> Vec<String> {
        let volume = self.volume.json("rw");
        let [new, old] = [new, old].map(|size| size.to_string());
        vec![
            "expandfs".to_owned(),
            volume,
            String::new(),
            self.text(),
            new,
            old,
        ]
    }

    fn text(&self) -> String {
        self.dir
            .to_str()
            .expect("sandboxes have plain names")
            .to_owned()
    }
}

/// Returns a flat JSON object as Kubernetes writes it: keys sorted, `<`, `>` and `&` escaped.
///
/// # Panics
/// Never.
#[must_use]
pub fn json<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let sorted: BTreeMap<_, _> = pairs.into_iter().collect();
    serde_json::to_string(&sorted)
        .expect("strings are JSON")
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_written_as_kubernetes_writes_them() {
        assert_eq!(
            json([("b", "<&>"), ("a", "")]),
            r#"{"a":"","b":"\u003c\u0026\u003e"}"#
        );
    }
}
