//! What a caller asks for: one typed value an exec.

use crate::{Bytes, MountRequest, Options, Resize, Volume, VolumeName, argument};
use std::{
    borrow::Cow,
    ffi::{OsStr, OsString},
    path::PathBuf,
};

mod parse;

/// One exec of the driver, its arguments checked.
///
/// Layouts are those of Kubernetes 1.6 to the newest (pkg/volume/flexvolume), the proposal's order
/// of the two expansions, and external-storage's flex provisioner.
#[derive(Debug)]
#[non_exhaustive]
pub enum Callout {
    /// `init`: what can the driver do?
    Init,
    /// `getvolumename JSON`: its answer is thrown away since 1.6.5, its failure is not.
    GetVolumeName {
        /// The volume.
        volume: Volume,
    },
    /// `attach JSON NODE`.
    Attach {
        /// The volume.
        volume: Volume,
        /// Kubernetes' name of the node.
        node: String,
    },
    /// `waitforattach DEVICE JSON`.
    WaitForAttach {
        /// What `attach` answered, or empty.
        device: String,
        /// The volume.
        volume: Volume,
    },
    /// `isattached JSON NODE`.
    IsAttached {
        /// The volume.
        volume: Volume,
        /// Kubernetes' name of the node.
        node: String,
    },
    /// `detach NAME NODE`.
    Detach {
        /// All that the caller still knows of the volume.
        name: VolumeName,
        /// Kubernetes' name of the node.
        node: String,
    },
    /// `mountdevice DIR DEVICE JSON`.
    MountDevice {
        /// Kubelet's own directory for the volume.
        dir: PathBuf,
        /// What `waitforattach` answered, or empty.
        device: String,
        /// The volume.
        volume: Volume,
    },
    /// `unmountdevice DIR`.
    UnmountDevice {
        /// The directory of `mountdevice`.
        dir: PathBuf,
    },
    /// `mount DIR JSON`.
    Mount(MountRequest),
    /// `unmount DIR`.
    Unmount {
        /// The directory of `mount`.
        dir: PathBuf,
    },
    /// `expandvolume JSON DIR NEW OLD`, or the proposal's `expandvolume NEW OLD JSON`.
    ExpandVolume {
        /// The volume.
        volume: Volume,
        /// The directory of `mountdevice`; the proposal names none.
        dir: Option<PathBuf>,
        /// The sizes.
        size: Resize,
    },
    /// `expandfs JSON DEVICE DIR NEW OLD`, or the proposal's `expandfs NEW OLD JSON`.
    ExpandFs {
        /// The volume.
        volume: Volume,
        /// The device as kubelet recorded it; empty for drivers without attach.
        device: String,
        /// Where the volume is mounted: of the pod since 1.25, of the node or of the pod before.
        /// The proposal names none.
        dir: Option<PathBuf>,
        /// The sizes.
        size: Resize,
    },
    /// `provision JSON`.
    Provision {
        /// The volume; it has a name.
        volume: Volume,
        /// At least this much.
        size: Bytes,
    },
    /// `delete JSON`.
    Delete {
        /// The volume.
        volume: Volume,
    },
    /// `capacity JSON`.
    Capacity {
        /// The parameters of a storage class.
        parameters: Options,
    },
    /// A callout of another time or a typing error: the answer is Not supported.
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

    /// Writes the arguments as the newest kubelet and the flex provisioner do; [`Callout::parse`]
    /// reads them back. The proposal's order is used for an expansion without a directory.
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

    /// The callout's name; that of one nobody knows is `unknown`.
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

    /// What the log calls the volume: its name, or the directory's last component, which kubelet
    /// makes from the name.
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

/// The sizes of `provision` in bytes, MiB and GiB; the two larger ones are rounded up.
const REQUESTS: [&str; 3] = ["requestBytes", "requestMiB", "requestGiB"];

fn sizes(size: Resize) -> [OsString; 2] {
    [size.new.0.to_string().into(), size.old.0.to_string().into()]
}

#[cfg(test)]
mod tests;
