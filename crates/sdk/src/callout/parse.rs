//! Parsing of arguments: their number, order and allowed values.

use super::{Callout, REQUESTS};
use crate::{
    Bytes, Error, Resize, Result, Volume, VolumeName,
    argument::{Argument, decimal},
};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

impl Callout {
    /// Parses `argv`, which holds the arguments without the executable's own name.
    ///
    /// ```
    /// # use flexvol_sdk::Callout;
    /// let argv = ["unmount", "/var/lib/kubelet/pods/1/volumes/v~d/data"].map(Into::into);
    /// assert!(matches!(Callout::parse(&argv)?, Callout::Unmount { .. }));
    /// # Ok::<(), flexvol_sdk::Error>(())
    /// ```
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for missing, extra or malformed arguments. Messages name
    /// options, but never repeat their values.
    pub fn parse(argv: &[OsString]) -> Result<Callout> {
        let [name, rest @ ..] = argv else {
            return Err(Error::invalid("no callout was given"));
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
                    .ok_or_else(|| Error::invalid("the volume's name is not UTF-8"))?;
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
}

/// Checks that there are as many arguments as the layout has.
fn layout<'a, const N: usize>(
    name: &OsStr,
    arguments: &'a [OsString],
    layout: &str,
) -> Result<&'a [OsString; N]> {
    arguments.try_into().map_err(|_| {
        let (name, given) = (name.display(), arguments.len());
        Error::invalid(format!("{name} takes {layout}; arguments given: {given}"))
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
        _ => Err(Error::invalid(format!(
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
        _ => Err(Error::invalid(format!(
            "expandfs takes JSON DEVICE DIR NEW OLD or NEW OLD JSON; arguments given: {}",
            arguments.len()
        ))),
    }
}

/// Tells JSON from a size by the first byte: no caller writes space before its JSON.
fn is_object(argument: &OsStr) -> bool {
    argument.as_bytes().first() == Some(&b'{')
}

fn resize(new: &OsStr, old: &OsStr) -> Result<Resize> {
    let size = Resize {
        new: size("NEW", new)?,
        old: size("OLD", old)?,
    };
    if size.new < size.old {
        return Err(Error::invalid(format!(
            "cannot shrink the volume from {} to {}; volumes only grow",
            size.old, size.new
        )));
    }
    Ok(size)
}

/// Parses a size in plain decimal bytes. The limit is Kubernetes' `int64` (`Quantity.Value()`).
fn size(what: &str, text: &OsStr) -> Result<Bytes> {
    let text = text.to_string_lossy();
    match decimal(&text) {
        Some(0) => Err(Error::invalid(format!(
            "{what} is zero; a volume has a size"
        ))),
        Some(bytes) if i64::try_from(bytes).is_ok() => Ok(Bytes(bytes)),
        Some(_) => Err(Error::invalid(format!("{what} is larger than any volume"))),
        None => Err(Error::invalid(format!(
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
        wanted = Some(Bytes(bytes.ok_or_else(|| {
            Error::invalid(format!("{key} is larger than any volume"))
        })?));
    }
    let volume = argument.into_volume()?;
    if volume.name.is_none() {
        return Err(Error::invalid(
            "provision needs kubernetes.io/pvOrVolumeName",
        ));
    }
    let size = wanted.ok_or_else(|| Error::invalid("provision needs requestBytes"))?;
    Ok(Callout::Provision { volume, size })
}

/// Parses a directory of kubelet. It must be absolute, below `/`, and without `..`, so that every reader resolves
/// it to the same directory.
fn directory(text: &OsStr) -> Result<PathBuf> {
    let path = Path::new(text);
    let bytes = text.as_bytes();
    if !path.is_absolute() || path.file_name().is_none() {
        return Err(Error::invalid("the directory is no absolute path below /"));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(Error::invalid("the directory contains .."));
    }
    if bytes.len() >= 4096 || text.to_string_lossy().contains(char::is_control) {
        return Err(Error::invalid(
            "the directory contains a control character or is too long",
        ));
    }
    Ok(path.to_owned())
}

/// Parses a device as an earlier callout answered it; empty if there was none.
fn device_text(text: &OsStr) -> Result<String> {
    let text = text
        .to_str()
        .ok_or_else(|| Error::invalid("the device is not UTF-8"))?;
    if text.starts_with('-') || text.contains(char::is_control) {
        return Err(Error::invalid(
            "the device begins with a dash or contains a control character",
        ));
    }
    Ok(text.to_owned())
}

/// Parses a node's name. The API server validates it like the name of a persistent volume.
fn node_name(text: &OsStr) -> Result<String> {
    let name = text.to_str().filter(|name| VolumeName::parse(name).is_ok());
    name.map(str::to_owned)
        .ok_or_else(|| Error::invalid("the node's name is no DNS subdomain"))
}
