//! Callouts: one typed value for each exec of the driver.

use crate::{Bytes, MountRequest, Options, Resize, Volume, VolumeName, argument};
use std::{
    borrow::Cow,
    ffi::{OsStr, OsString},
    path::PathBuf,
};

mod parse;

/// One exec of the driver, with checked arguments.
///
/// Accepts the argument layouts of Kubernetes 1.6 to the newest (pkg/volume/flexvolume), the order that the
/// FlexVolume resize proposal gave to the two expansions, and that of external-storage's flex provisioner.
#[derive(Debug)]
#[non_exhaustive]
pub enum Callout {
    /// `init`: asks for the driver's capabilities.
    Init,
    /// `getvolumename JSON`. Since 1.6.5 kubelet discards the answer, but a failure still counts.
    GetVolumeName {
        /// The volume.
        volume: Volume,
    },
    /// `attach JSON NODE`.
    Attach {
        /// The volume.
        volume: Volume,
        /// The node's name in Kubernetes.
        node: String,
    },
    /// `waitforattach DEVICE JSON`.
    WaitForAttach {
        /// The answer of `attach`, or empty.
        device: String,
        /// The volume.
        volume: Volume,
    },
    /// `isattached JSON NODE`.
    IsAttached {
        /// The volume.
        volume: Volume,
        /// The node's name in Kubernetes.
        node: String,
    },
    /// `detach NAME NODE`.
    Detach {
        /// The volume's name; the caller knows nothing else about it.
        name: VolumeName,
        /// The node's name in Kubernetes.
        node: String,
    },
    /// `mountdevice DIR DEVICE JSON`.
    MountDevice {
        /// Kubelet's own directory for the volume, not a pod's.
        dir: PathBuf,
        /// The answer of `waitforattach`, or empty.
        device: String,
        /// The volume.
        volume: Volume,
    },
    /// `unmountdevice DIR`.
    UnmountDevice {
        /// The directory that `mountdevice` mounted on.
        dir: PathBuf,
    },
    /// `mount DIR JSON`.
    Mount(MountRequest),
    /// `unmount DIR`.
    Unmount {
        /// The directory that `mount` mounted on.
        dir: PathBuf,
    },
    /// `expandvolume JSON DIR NEW OLD`, or the proposal's `expandvolume NEW OLD JSON`.
    ExpandVolume {
        /// The volume.
        volume: Volume,
        /// The directory of `mountdevice`; `None` in the proposal's form.
        dir: Option<PathBuf>,
        /// The old and the new size.
        size: Resize,
    },
    /// `expandfs JSON DEVICE DIR NEW OLD`, or the proposal's `expandfs NEW OLD JSON`.
    ExpandFs {
        /// The volume.
        volume: Volume,
        /// The device as kubelet recorded it; empty for drivers without attach.
        device: String,
        /// Where the volume is mounted: since 1.25 the pod's directory, before that kubelet's own or the pod's.
        /// `None` in the proposal's form.
        dir: Option<PathBuf>,
        /// The old and the new size.
        size: Resize,
    },
    /// `provision JSON`.
    Provision {
        /// The volume, which has a name.
        volume: Volume,
        /// The smallest acceptable size.
        size: Bytes,
    },
    /// `delete JSON`.
    Delete {
        /// The volume.
        volume: Volume,
    },
    /// `capacity JSON`.
    Capacity {
        /// The parameters of a StorageClass.
        parameters: Options,
    },
    /// An unknown callout, from another version of Kubernetes or mistyped. Answered with "Not supported".
    Unknown(OsString),
}

impl Callout {
    /// The names of all callouts.
    pub const NAMES: [&'static str; 15] = [
        "init",
        "getvolumename",
        "attach",
        "waitforattach",
        "isattached",
        "detach",
        "mountdevice",
        "unmountdevice",
        "mount",
        "unmount",
        "expandvolume",
        "expandfs",
        "provision",
        "delete",
        "capacity",
    ];

    /// The callouts with their arguments.
    pub(crate) const USAGE: [&'static str; 15] = [
        "init",
        "getvolumename JSON",
        "attach JSON NODE",
        "waitforattach DEVICE JSON",
        "isattached JSON NODE",
        "detach NAME NODE",
        "mountdevice DIR DEVICE JSON",
        "unmountdevice DIR",
        "mount DIR JSON",
        "unmount DIR",
        "expandvolume JSON DIR NEW OLD",
        "expandfs JSON DEVICE DIR NEW OLD",
        "provision JSON",
        "delete JSON",
        "capacity JSON",
    ];

    /// Returns the arguments as the newest kubelet and the flex provisioner write them; the inverse of
    /// [`Callout::parse`]. An expansion without a directory uses the proposal's order.
    #[must_use]
    pub fn to_argv(&self) -> Vec<OsString> {
        let json = |volume| argument::to_json(argument::of_volume(volume));
        let mut argv = vec![match self {
            Callout::Unknown(name) => name.clone(),
            callout => callout.name().into(),
        }];
        match self {
            Callout::Init | Callout::Unknown(_) => {}
            Callout::GetVolumeName { volume } | Callout::Delete { volume } => {
                argv.push(json(volume));
            }
            Callout::Attach { volume, node } | Callout::IsAttached { volume, node } => {
                argv.extend([json(volume), node.into()]);
            }
            Callout::WaitForAttach { device, volume } => {
                argv.extend([device.into(), json(volume)]);
            }
            Callout::Detach { name, node } => argv.extend([name.as_str().into(), node.into()]),
            Callout::MountDevice {
                dir,
                device,
                volume,
            } => {
                argv.extend([dir.into(), device.into(), json(volume)]);
            }
            Callout::UnmountDevice { dir } | Callout::Unmount { dir } => argv.push(dir.into()),
            Callout::Mount(request) => argv.extend([
                (&request.dir).into(),
                argument::to_json(argument::of_mount(request)),
            ]),
            Callout::ExpandVolume {
                volume,
                dir: Some(dir),
                size,
            } => {
                argv.extend([json(volume), dir.into()]);
                argv.extend(sizes(*size));
            }
            Callout::ExpandFs {
                volume,
                device,
                dir: Some(dir),
                size,
            } => {
                argv.extend([json(volume), device.into(), dir.into()]);
                argv.extend(sizes(*size));
            }
            Callout::ExpandVolume {
                volume,
                dir: None,
                size,
            }
            | Callout::ExpandFs {
                volume,
                dir: None,
                size,
                ..
            } => {
                argv.extend(sizes(*size));
                argv.push(json(volume));
            }
            Callout::Provision { volume, size } => {
                let mut map = argument::of_volume(volume);
                let units = [Bytes(1), Bytes::MIB, Bytes::GIB];
                for (key, unit) in REQUESTS.into_iter().zip(units) {
                    map.insert(key.to_owned(), size.0.div_ceil(unit.0).to_string());
                }
                argv.push(argument::to_json(map));
            }
            Callout::Capacity { parameters } => {
                argv.push(argument::to_json(parameters.clone().into()));
            }
        }
        argv
    }

    /// Returns the callout's name, `unknown` for [`Callout::Unknown`].
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Callout::Init => "init",
            Callout::GetVolumeName { .. } => "getvolumename",
            Callout::Attach { .. } => "attach",
            Callout::WaitForAttach { .. } => "waitforattach",
            Callout::IsAttached { .. } => "isattached",
            Callout::Detach { .. } => "detach",
            Callout::MountDevice { .. } => "mountdevice",
            Callout::UnmountDevice { .. } => "unmountdevice",
            Callout::Mount(_) => "mount",
            Callout::Unmount { .. } => "unmount",
            Callout::ExpandVolume { .. } => "expandvolume",
            Callout::ExpandFs { .. } => "expandfs",
            Callout::Provision { .. } => "provision",
            Callout::Delete { .. } => "delete",
            Callout::Capacity { .. } => "capacity",
            Callout::Unknown(_) => "unknown",
        }
    }

    /// Returns the name that the log uses for the volume: its own, or else the last component of the directory,
    /// which kubelet derives from it.
    #[must_use]
    pub fn subject(&self) -> Option<Cow<'_, str>> {
        let (volume, dir) = match self {
            Callout::Init | Callout::Capacity { .. } | Callout::Unknown(_) => (None, None),
            Callout::GetVolumeName { volume }
            | Callout::Attach { volume, .. }
            | Callout::WaitForAttach { volume, .. }
            | Callout::IsAttached { volume, .. }
            | Callout::Provision { volume, .. }
            | Callout::Delete { volume } => (Some(volume), None),
            Callout::Detach { name, .. } => return Some(name.as_str().into()),
            Callout::Mount(request) => (Some(&request.volume), Some(&request.dir)),
            Callout::MountDevice { dir, volume, .. } => (Some(volume), Some(dir)),
            Callout::ExpandVolume { dir, volume, .. } | Callout::ExpandFs { dir, volume, .. } => {
                (Some(volume), dir.as_ref())
            }
            Callout::UnmountDevice { dir } | Callout::Unmount { dir } => (None, Some(dir)),
        };
        let name = volume.and_then(|volume| volume.name.as_ref());
        let base = || {
            dir.and_then(|dir| dir.file_name())
                .map(OsStr::to_string_lossy)
        };
        name.map(|name| name.as_str().into()).or_else(base)
    }
}

/// The keys for the size in `provision`, in bytes, MiB and GiB. Callers round up the latter two.
const REQUESTS: [&str; 3] = ["requestBytes", "requestMiB", "requestGiB"];

fn sizes(size: Resize) -> [OsString; 2] {
    [size.new.0.to_string().into(), size.old.0.to_string().into()]
}

#[cfg(test)]
mod tests;
