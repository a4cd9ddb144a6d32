//! What a caller asks for: one typed value an exec.

use crate::{
    Bytes, Error, ErrorKind, MountRequest, Options, Resize, Result, Volume, VolumeName,
    argument::{self, Argument, decimal},
};
use std::{
    borrow::Cow,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

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

    /// Reads the arguments after the executable's own name.
    ///
    /// ```
    /// # use flexvol_sdk::Callout;
    /// let argv = ["unmount", "/var/lib/kubelet/pods/1/volumes/v~d/data"].map(Into::into);
    /// assert!(matches!(Callout::parse(&argv)?, Callout::Unmount { .. }));
    /// # Ok::<(), flexvol_sdk::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for missing, extra or malformed arguments. Messages name options
    /// and repeat no value of theirs.
    pub fn parse(argv: &[OsString]) -> Result<Callout> {
        let [name, rest @ ..] = argv else {
            return Err(refuse("no callout was given"));
        };
        Ok(match name.to_str().unwrap_or_default() {
            "init" => {
                let [] = layout(name, rest, "no arguments")?;
                Callout::Init
            }
            "getvolumename" => {
                let [json] = layout(name, rest, "JSON")?;
                Callout::GetVolumeName {
                    volume: volume(json)?,
                }
            }
            "attach" => {
                let [json, node] = layout(name, rest, "JSON NODE")?;
                Callout::Attach {
                    volume: volume(json)?,
                    node: node_name(node)?,
                }
            }
            "waitforattach" => {
                let [device, json] = layout(name, rest, "DEVICE JSON")?;
                Callout::WaitForAttach {
                    device: device_text(device)?,
                    volume: volume(json)?,
                }
            }
            "isattached" => {
                let [json, node] = layout(name, rest, "JSON NODE")?;
                Callout::IsAttached {
                    volume: volume(json)?,
                    node: node_name(node)?,
                }
            }
            "detach" => {
                let [volume, node] = layout(name, rest, "NAME NODE")?;
                let volume = volume
                    .to_str()
                    .ok_or_else(|| refuse("the volume's name is not UTF-8"))?;
                Callout::Detach {
                    name: VolumeName::parse(volume)?,
                    node: node_name(node)?,
                }
            }
            "mountdevice" => {
                let [dir, device, json] = layout(name, rest, "DIR DEVICE JSON")?;
                Callout::MountDevice {
                    dir: directory(dir)?,
                    device: device_text(device)?,
                    volume: volume(json)?,
                }
            }
            "unmountdevice" => {
                let [dir] = layout(name, rest, "DIR")?;
                Callout::UnmountDevice {
                    dir: directory(dir)?,
                }
            }
            "mount" => {
                let [dir, json] = layout(name, rest, "DIR JSON")?;
                Callout::Mount(Argument::parse(json)?.into_mount(directory(dir)?)?)
            }
            "unmount" => {
                let [dir] = layout(name, rest, "DIR")?;
                Callout::Unmount {
                    dir: directory(dir)?,
                }
            }
            "expandvolume" => expand_volume(rest)?,
            "expandfs" => expand_fs(rest)?,
            "provision" => {
                let [json] = layout(name, rest, "JSON")?;
                provision(json)?
            }
            "delete" => {
                let [json] = layout(name, rest, "JSON")?;
                Callout::Delete {
                    volume: volume(json)?,
                }
            }
            "capacity" => {
                let [json] = layout(name, rest, "JSON")?;
                Callout::Capacity {
                    parameters: Argument::parse(json)?.into_options()?,
                }
            }
            _ => Callout::Unknown(name.clone()),
        })
    }

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

pub(crate) fn refuse(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// Exactly as many arguments as the layout has.
fn layout<'a, const N: usize>(
    name: &OsStr,
    arguments: &'a [OsString],
    layout: &str,
) -> Result<&'a [OsString; N]> {
    arguments.try_into().map_err(|_| {
        let (name, given) = (name.display(), arguments.len());
        refuse(format!("{name} takes {layout}; arguments given: {given}"))
    })
}

fn volume(json: &OsStr) -> Result<Volume> {
    Argument::parse(json)?.into_volume()
}

fn expand_volume(arguments: &[OsString]) -> Result<Callout> {
    match arguments {
        [json, dir, new, old] if is_object(json) => Ok(Callout::ExpandVolume {
            volume: volume(json)?,
            dir: Some(directory(dir)?),
            size: resize(new, old)?,
        }),
        [new, old, json] if is_object(json) => Ok(Callout::ExpandVolume {
            volume: volume(json)?,
            dir: None,
            size: resize(new, old)?,
        }),
        _ => Err(refuse(format!(
            "expandvolume takes JSON DIR NEW OLD or NEW OLD JSON; arguments given: {}",
            arguments.len()
        ))),
    }
}

fn expand_fs(arguments: &[OsString]) -> Result<Callout> {
    match arguments {
        [json, device, dir, new, old] if is_object(json) => Ok(Callout::ExpandFs {
            volume: volume(json)?,
            device: device_text(device)?,
            dir: Some(directory(dir)?),
            size: resize(new, old)?,
        }),
        [new, old, json] if is_object(json) => Ok(Callout::ExpandFs {
            volume: volume(json)?,
            device: String::new(),
            dir: None,
            size: resize(new, old)?,
        }),
        _ => Err(refuse(format!(
            "expandfs takes JSON DEVICE DIR NEW OLD or NEW OLD JSON; arguments given: {}",
            arguments.len()
        ))),
    }
}

/// Every caller writes its JSON without leading space, so the first byte tells it from a size.
fn is_object(argument: &OsStr) -> bool {
    argument.as_bytes().first() == Some(&b'{')
}

fn resize(new: &OsStr, old: &OsStr) -> Result<Resize> {
    let size = Resize {
        new: size("NEW", new)?,
        old: size("OLD", old)?,
    };
    if size.new < size.old {
        return Err(refuse(format!(
            "cannot shrink the volume from {} to {}; volumes only grow",
            size.old, size.new
        )));
    }
    Ok(size)
}

fn sizes(size: Resize) -> [OsString; 2] {
    [size.new.0.to_string().into(), size.old.0.to_string().into()]
}

/// A size in plain decimal bytes. Kubernetes counts in `int64` (`Quantity.Value()`).
fn size(what: &str, text: &OsStr) -> Result<Bytes> {
    let text = text.to_string_lossy();
    match decimal(&text) {
        Some(0) => Err(refuse(format!("{what} is zero; a volume has a size"))),
        Some(bytes) if i64::try_from(bytes).is_ok() => Ok(Bytes(bytes)),
        Some(_) => Err(refuse(format!("{what} is larger than any volume"))),
        None => Err(refuse(format!(
            "{what} is no plain number of bytes, or too large"
        ))),
    }
}

fn provision(json: &OsStr) -> Result<Callout> {
    let mut argument = Argument::parse(json)?;
    let mut wanted = None;
    for (key, unit) in REQUESTS.into_iter().zip([Bytes(1), Bytes::MIB, Bytes::GIB]) {
        let Some(text) = argument.take(key)? else {
            continue;
        };
        if wanted.is_some() {
            continue; // the exact one comes first
        }
        let count = size(key, text.as_ref())?;
        let bytes = count
            .0
            .checked_mul(unit.0)
            .filter(|&bytes| i64::try_from(bytes).is_ok());
        wanted =
            Some(Bytes(bytes.ok_or_else(|| {
                refuse(format!("{key} is larger than any volume"))
            })?));
    }
    let volume = argument.into_volume()?;
    if volume.name.is_none() {
        return Err(refuse("provision needs kubernetes.io/pvOrVolumeName"));
    }
    let size = wanted.ok_or_else(|| refuse("provision needs requestBytes"))?;
    Ok(Callout::Provision { volume, size })
}

/// A directory of kubelet: absolute, below `/`, and the same directory to everybody who reads it.
fn directory(text: &OsStr) -> Result<PathBuf> {
    let path = Path::new(text);
    let bytes = text.as_bytes();
    if !path.is_absolute() || path.file_name().is_none() {
        return Err(refuse("the directory is no absolute path below /"));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(refuse("the directory contains .."));
    }
    if bytes.len() >= 4096 || bytes.iter().any(|c| c.is_ascii_control()) {
        return Err(refuse(
            "the directory contains a control character or is too long",
        ));
    }
    Ok(path.to_owned())
}

/// A device as an earlier callout answered it; empty where there was none.
fn device_text(text: &OsStr) -> Result<String> {
    let text = text
        .to_str()
        .ok_or_else(|| refuse("the device is not UTF-8"))?;
    if text.starts_with('-') || text.contains(char::is_control) {
        return Err(refuse(
            "the device begins with a dash or contains a control character",
        ));
    }
    Ok(text.to_owned())
}

/// The API server validates the names of nodes as it does those of persistent volumes.
fn node_name(text: &OsStr) -> Result<String> {
    let name = text.to_str().filter(|name| VolumeName::parse(name).is_ok());
    name.map(str::to_owned)
        .ok_or_else(|| refuse("the node's name is no DNS subdomain"))
}

#[cfg(test)]
mod tests;
