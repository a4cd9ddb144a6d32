//! The arguments of callouts, in the order of Kubernetes 1.6 to 1.37.

use super::Run;
use crate::{
    callout::argument::{self, Options},
    volume::Volume,
};
use std::path::Path;

impl Run {
    /// Returns the arguments of a callout for a volume that does not exist, on this directory.
    pub fn missing_volume_arguments(&self, callout: &str, directory: &Path) -> Vec<String> {
        self.arguments(callout, &self.missing_volume(), directory, "")
    }

    /// Returns the arguments of a callout, in the order of Kubernetes 1.6 to 1.37.
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

    /// The members of `mount` that come from the volume's secret.
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

    /// Returns the arguments of the driver's own `provision`.
    pub fn provision(&self, name: &str, bytes: u64) -> Vec<String> {
        let members = self.provision_members(name, bytes);
        vec!["provision".to_owned(), argument::object(&members)]
    }

    /// The members of the JSON for `provision`.
    pub fn provision_members(&self, name: &str, bytes: u64) -> Options {
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
        members
    }
}
