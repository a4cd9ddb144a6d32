//! Device-mapper devices of logical volumes, as sysfs shows them.

use crate::block::{device_node, number::DeviceNumber};
use flexvol_sdk::{Error, Result};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A logical volume that has a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Device number.
    pub number: DeviceNumber,
    /// Name of the volume group when the device was created.
    pub group: String,
    /// Name of the logical volume when the device was created.
    pub volume: String,
    /// `LVM-`, the group's UUID and the volume's, without dashes (`build_dm_uuid` in LVM's lib/activate/dev_manager.c).
    /// Both are random, so it identifies one volume for ever.
    pub uuid: String,
    /// Whether this device, or one below it, is suspended for a change. Reads and writes hang meanwhile.
    pub suspended: bool,
    /// Name of the logical volume to refresh before this one, because a device of it below this one is suspended. A
    /// suspended thin pool blocks all its volumes, which are not marked as suspended themselves.
    pub stopped_below: Option<String>,
    /// Whether the device refuses writes.
    pub read_only: bool,
}

/// Returns the logical volume of a device; `None` if it has none, or is internal to LVM.
///
/// # Errors
/// When sysfs cannot be read.
pub fn of(number: DeviceNumber) -> Result<Option<Mapping>> {
    read(Path::new(&format!("/sys/dev/block/{number}"))).map_err(failed)
}

/// Finds the device of the volume that `wanted` accepts. `hint` is the minor number it had last; all devices are
/// searched only if the hint is wrong.
///
/// # Errors
/// When sysfs cannot be read.
pub fn find(hint: Option<u32>, wanted: impl Fn(&Mapping) -> bool) -> Result<Option<Mapping>> {
    // Device-mapper names its devices by their minor numbers (`alloc_dev` in drivers/md/dm.c).
    if let Some(minor) = hint
        && let Some(found) = read(Path::new(&format!("/sys/block/dm-{minor}"))).map_err(failed)?
        && wanted(&found)
    {
        return Ok(Some(found));
    }
    for entry in entries(Path::new("/sys/block")).map_err(failed)? {
        if let Some(found) = read(&entry).map_err(failed)?
            && wanted(&found)
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Reads the device in `directory`. A device that disappears meanwhile counts as missing.
fn read(directory: &Path) -> io::Result<Option<Mapping>> {
    let Some((uuid, name)) = identity(directory)? else {
        return Ok(None);
    };
    let Some((group, volume)) = volume_in(&uuid, &name) else {
        return Ok(None);
    };
    let (Some(suspended), Some(read_only)) = (
        text(directory.join("dm/suspended"))?,
        text(directory.join("ro"))?,
    ) else {
        return Ok(None);
    };
    let number = match device_node::number_in(&directory.join("dev")) {
        Err(error) if is_gone(&error) => return Ok(None),
        number => number?,
    };
    let stopped_below = stopped_below(directory, &volume, DEEPEST)?;
    Ok(Some(Mapping {
        number,
        group,
        suspended: suspended != "0" || stopped_below.is_some(),
        stopped_below,
        volume,
        read_only: read_only != "0",
        uuid,
    }))
}

/// Maximum depth of LVM's device stacks: a volume, its pool, the pool's data volume, legs of a mirror.
const DEEPEST: u32 = 4;

/// Returns the volume of the first suspended device below this one. `owner` is the volume of devices that do not name
/// theirs.
fn stopped_below(directory: &Path, owner: &str, depth: u32) -> io::Result<Option<String>> {
    for below in entries(&directory.join("slaves"))? {
        let (Some(name), Some(suspended)) = (
            text(below.join("dm/name"))?,
            text(below.join("dm/suspended"))?,
        ) else {
            continue;
        };
        // A name with a layer (`vg0-tp0-tpool`) names its volume. A device without one is a hidden part of the volume
        // above.
        let parts = parts(&name);
        let owner = match parts.as_slice() {
            [_, volume, _layer] => volume,
            _ => owner,
        };
        if suspended != "0" {
            return Ok(Some(owner.to_owned()));
        }
        if depth > 1
            && let Some(found) = stopped_below(&below, owner, depth - 1)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Returns the paths in a directory of sysfs; none if the directory disappeared.
pub(super) fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Err(error) if is_gone(&error) => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.path())).collect(),
    }
}

/// Returns the UUID and the name of a device-mapper device; `None` for any other device.
pub(super) fn identity(directory: &Path) -> io::Result<Option<(String, String)>> {
    let Some(uuid) = text(directory.join("dm/uuid"))? else {
        return Ok(None);
    };
    Ok(text(directory.join("dm/name"))?.map(|name| (uuid, name)))
}

/// Reads a file of sysfs. The name of a mapping is arbitrary and need not be UTF-8.
pub(super) fn text(path: PathBuf) -> io::Result<Option<String>> {
    match fs::read(path) {
        Ok(text) => Ok(Some(String::from_utf8_lossy(&text).trim_end().to_owned())),
        Err(error) if is_gone(&error) || is_going(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the device is being removed: device-mapper then fails reads (`dm_attr_show` in drivers/md/dm-sysfs.c).
fn is_going(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::INVAL, Errno::IO].contains(&Errno::from_io_error(error).unwrap_or(Errno::PERM))
}

pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
}

pub(super) fn failed(error: io::Error) -> Error {
    Error::system("look at the node's logical volumes", error)
}

/// Length of a volume's UUID: two UUIDs of 32 characters. A third part would name a layer (`-tpool`, `-real`).
pub(super) const UUID_LENGTH: usize = "LVM-".len() + 64;

fn volume_in(uuid: &str, name: &str) -> Option<(String, String)> {
    if !uuid.starts_with("LVM-") || uuid.len() != UUID_LENGTH {
        return None;
    }
    match <[String; 2]>::try_from(parts(name)) {
        Ok([group, volume]) if !group.is_empty() && !volume.is_empty() => Some((group, volume)),
        _ => None,
    }
}

/// Splits a device name as LVM builds it (`dm_build_dm_name` in libdm/libdm-string.c): group, volume and layer, joined
/// by hyphens; hyphens within them are doubled.
pub(super) fn parts(name: &str) -> Vec<String> {
    let (mut parts, mut part) = (Vec::new(), String::new());
    let mut characters = name.chars().peekable();
    while let Some(character) = characters.next() {
        if character != '-' {
            part.push(character);
        } else if characters.next_if_eq(&'-').is_some() {
            part.push('-');
        } else {
            parts.push(std::mem::take(&mut part));
        }
    }
    parts.push(part);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "LVM-vNUQTT3rQ6iGLe1ZfO1DAeSU1dB4IxBRM5QkWABuaPdCA341znb2YoEerhS0LwzL";

    #[test]
    fn names_are_split_where_lvm_joined_them() {
        let split = |name: &str| {
            let (group, volume) = volume_in(UUID, name)?;
            Some(format!("{group} {volume}"))
        };
        for (name, parts) in [
            ("vg0-flexvol--0011", Some("vg0 flexvol-0011")),
            ("my--vg-a", Some("my-vg a")),
            ("a--------b-c", Some("a----b c")),
            ("vg0-tp0_tmeta", Some("vg0 tp0_tmeta")),
            ("vg0-tp0-tpool", None),
            ("vg0", None),
            ("-a", None),
            ("a-", None),
            ("", None),
        ] {
            assert_eq!(split(name).as_deref(), parts, "{name}");
        }
    }

    #[test]
    fn only_whole_logical_volumes_count() {
        assert!(volume_in(UUID, "vg0-a").is_some());
        for uuid in [
            &format!("{UUID}-tpool"),
            &UUID[..UUID.len() - 1],
            "CRYPT-LUKS2-00112233445566778899aabbccddeeff-vg0-aaaaaaaaaaaaaaaaaaa",
            "",
        ] {
            assert_eq!(volume_in(uuid, "vg0-a"), None, "{uuid}");
        }
    }

    /// Creates a device in a fake sysfs, on top of other devices.
    fn device(root: &Path, name: &str, suspended: bool, below: &[&str]) {
        let uuid = match name.matches('-').count() {
            1 => UUID.to_owned(),
            _ => format!("{UUID}-tpool"),
        };
        let dir = root.join(name);
        fs::create_dir_all(dir.join("dm")).unwrap();
        fs::create_dir_all(dir.join("slaves")).unwrap();
        let suspended = u8::from(suspended).to_string();
        for (file, text) in [
            ("dm/uuid", uuid.as_str()),
            ("dm/name", name),
            ("dm/suspended", &suspended),
            ("ro", "0"),
            ("dev", "253:7"),
        ] {
            fs::write(dir.join(file), format!("{text}\n")).unwrap();
        }
        for other in below {
            let link = dir.join("slaves").join(other);
            std::os::unix::fs::symlink(root.join(other), link).unwrap();
        }
    }

    #[test]
    fn a_volume_on_a_stopped_device_is_stopped() {
        for (stopped, owner) in [
            ("", None),
            ("vg0-tp0-tpool", Some("tp0")),
            ("vg0-tp0_tdata", Some("tp0")),
            ("vg0-tp0_tmeta", Some("tp0")),
        ] {
            let root = tempfile::tempdir().unwrap();
            let make = |name: &str, below: &[&str]| {
                device(root.path(), name, name == stopped, below);
            };
            make("vg0-volume", &["vg0-tp0-tpool"]);
            make("vg0-tp0-tpool", &["vg0-tp0_tdata", "vg0-tp0_tmeta"]);
            make("vg0-tp0_tdata", &["sdb"]);
            make("vg0-tp0_tmeta", &[]);
            fs::create_dir(root.path().join("sdb")).unwrap();
            let found = read(&root.path().join("vg0-volume")).unwrap().unwrap();
            assert_eq!(found.stopped_below.as_deref(), owner, "{stopped}");
            assert_eq!(found.suspended, owner.is_some(), "{stopped}");
        }
    }

    #[test]
    fn a_neighbour_whose_name_is_no_text_is_no_volume_and_no_trouble() {
        let root = tempfile::tempdir().unwrap();
        device(root.path(), "vg0-a", false, &["crypt"]);
        device(root.path(), "crypt", false, &[]);
        for file in ["dm/uuid", "dm/name"] {
            fs::write(root.path().join("crypt").join(file), b"CRYPT-\xff\n").unwrap();
        }
        let found = |name: &str| read(&root.path().join(name)).unwrap();
        assert_eq!(found("crypt"), None);
        assert_eq!(found("vg0-a").unwrap().volume, "a");
    }

    #[test]
    fn a_device_that_is_none_of_lvms_is_no_mapping() {
        let null = DeviceNumber {
            major: 1,
            minor: 4_000,
        };
        assert_eq!(of(null).unwrap(), None);
        assert_eq!(find(Some(1_000_000), |_| false).unwrap(), None);
    }
}
