//! `/proc/self/mountinfo`: the mounts of this process' mount namespace.
//!
//! The map, not the truth: mounts of other namespaces and lazily unmounted ones are missing here
//! and still hold the device, which only an exclusive open finds out (see [`crate::device`]).
//! Format: `proc_pid_mountinfo(5)`, written by `show_mountinfo` in the kernel's
//! `fs/proc_namespace.c`.

use crate::{device::DeviceNumber, pool::GONE};
use flexvol_sdk::{Error, ErrorKind, Handle, Result};
use rustix::io::Errno;
use std::{
    collections::HashSet,
    ffi::OsString,
    fs, io,
    os::{
        fd::AsRawFd,
        unix::{
            ffi::OsStringExt,
            fs::{FileTypeExt, MetadataExt},
        },
    },
    path::{Component, Path, PathBuf},
};

/// One line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount's own id, unique while it exists.
    pub id: u64,
    /// The id of the mount it is mounted on.
    pub parent: u64,
    /// `st_dev` of its files. For Btrfs this is an anonymous number, not the block device's.
    pub number: DeviceNumber,
    /// Which directory of the file system is its root; not `/` for bind mounts of a part.
    pub root: PathBuf,
    /// Where it is mounted, seen from this process' root.
    pub mount_point: PathBuf,
    /// Whether this mount is read-only; the file system may be written through another one.
    pub read_only: bool,
    /// Whether it ignores set-user-id bits and device nodes, as every mount of ours does.
    pub is_confined: bool,
    /// Whether mounts below it propagate to other mount namespaces.
    pub shared: bool,
    /// The kernel's name of the file system.
    pub filesystem: String,
    /// What was mounted, as text; its node may be gone or mean something else by now.
    pub source: OsString,
    /// Whether the file system itself is read-only, as after an error.
    pub superblock_read_only: bool,
}

impl Mount {
    /// The volume whose directory is mounted here: that directory's name is the handle. Nothing
    /// but this table is needed for it, so it is known also while the pool is not there.
    #[must_use]
    pub fn volume(&self) -> Option<Handle> {
        // What the kernel writes behind a directory that was removed (`seq_dentry`).
        let root = self.root.as_os_str().as_encoded_bytes();
        let root = root.strip_suffix(b"//deleted").unwrap_or(root);
        let (_, name) = str::from_utf8(root).ok()?.rsplit_once('/')?;
        Handle::parse(name.strip_prefix(GONE).unwrap_or(name)).ok()
    }

    /// Whether the directory that is this volume, or a part of it, is mounted here.
    #[must_use]
    pub fn is_within(&self, volume: &Handle) -> bool {
        let name = volume.to_string();
        let is_ours = |component: Component<'_>| {
            let component = component.as_os_str().as_encoded_bytes();
            component.strip_prefix(GONE.as_bytes()).unwrap_or(component) == name.as_bytes()
        };
        self.root.components().any(is_ours)
    }
}

impl Mount {
    /// Whether this is a mount of the file system on a block device.
    #[must_use]
    pub fn is_of(&self, device: DeviceNumber) -> bool {
        self.number == device || is_btrfs_on(self, device)
    }
}

/// Reads the text of a mountinfo file.
///
/// # Errors
/// [`ErrorKind::Storage`] for a line that no kernel writes: guessing what is mounted is worse
/// than not knowing.
pub fn parse(text: &[u8]) -> Result<Vec<Mount>> {
    text.split(|&c| c == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| {
            parse_line(line).ok_or_else(|| {
                Error::new(
                    ErrorKind::Storage,
                    "cannot understand the kernel's mount table",
                )
                .because(String::from_utf8_lossy(line).into_owned())
            })
        })
        .collect()
}

/// The mounts of this process' mount namespace, in the kernel's order: a mount comes after the
/// one it covers.
///
/// # Errors
/// When `/proc` is not there or does not hold what it should.
pub fn read() -> Result<Vec<Mount>> {
    let text = fs::read("/proc/self/mountinfo")
        .map_err(|error| Error::system("read the mount table", error))?;
    parse(&text)
}

/// Every mount in this namespace of the file system on a block device.
///
/// # Errors
/// As [`read`].
pub fn mounts_of(device: DeviceNumber) -> Result<Vec<Mount>> {
    let mut mounts = read()?;
    mounts.retain(|mount| mount.is_of(device));
    Ok(mounts)
}

/// Where the file system on a block device is mounted, in the mount namespace of any process: a
/// container has its mounts in one of its own.
///
/// # Errors
/// As [`read`]. A process that ends while it is asked is passed over.
pub fn everywhere(device: DeviceNumber) -> Result<Vec<PathBuf>> {
    let mut mounts = all_namespaces()?;
    mounts.retain(|mount| mount.is_of(device));
    Ok(mounts.into_iter().map(|mount| mount.mount_point).collect())
}

/// Where the directory that is this volume, or a part of it, is mounted, in the mount namespace of
/// any process.
///
/// # Errors
/// As [`everywhere`].
pub fn directory_everywhere(volume: &Handle) -> Result<Vec<PathBuf>> {
    let mut mounts = all_namespaces()?;
    mounts.retain(|mount| mount.is_within(volume));
    Ok(mounts.into_iter().map(|mount| mount.mount_point).collect())
}

/// The mounts of every mount namespace that a process seen in `/proc` lives in.
///
/// # Errors
/// As [`read`]. A process that ends while it is asked is passed over.
pub fn all_namespaces() -> Result<Vec<Mount>> {
    let mut mounts = Vec::new();
    let mut namespaces = HashSet::new();
    let processes =
        fs::read_dir("/proc").map_err(|error| Error::system("list processes", error))?;
    for process in processes.flatten() {
        let path = process.path();
        let Ok(namespace) = fs::read_link(path.join("ns/mnt")) else {
            continue;
        };
        if namespaces.contains(&namespace) {
            continue;
        }
        // Of a process that ended meanwhile nothing is read: others may live where it lived.
        if let Ok(text) = fs::read(path.join("mountinfo")) {
            mounts.extend(parse(&text)?);
            // A process sees only what is below its root, others in the same place may see more.
            if fs::read_link(path.join("root")).is_ok_and(|root| root == Path::new("/")) {
                namespaces.insert(namespace);
            }
        }
    }
    Ok(mounts)
}

/// The id of the mount that an open file was reached through (`proc_pid_fdinfo(5)`, since Linux 3.15).
pub(crate) fn id_of(file: &impl AsRawFd) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let id = text
        .lines()
        .find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| Errno::IO.into())
}

/// Btrfs gives every mount an anonymous number; what is left is the text of the source, a device
/// node or, when the node is gone, its name, which equals the kernel's or spells the number.
fn is_btrfs_on(mount: &Mount, device: DeviceNumber) -> bool {
    if mount.filesystem != "btrfs" {
        return false;
    }
    let source = Path::new(&mount.source);
    match fs::metadata(source) {
        Ok(node) if node.file_type().is_block_device() => {
            DeviceNumber::from_raw(node.rdev()) == device
        }
        _ => {
            let kernel_name = fs::read_link(format!("/sys/dev/block/{device}"));
            let kernel_name = kernel_name.as_deref().ok().and_then(Path::file_name);
            source.file_name().is_some_and(|name| {
                Some(name) == kernel_name || *name == *device.to_string().as_str()
            })
        }
    }
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&c| c == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let device = fields.next()?;
    let colon = device.iter().position(|&c| c == b':')?;
    let major = number(&device[..colon])?.try_into().ok()?;
    let minor = number(&device[colon + 1..])?.try_into().ok()?;
    let root = unescape(fields.next()?);
    let mount_point = unescape(fields.next()?);
    let options = fields.next()?;
    let read_only = has_option(options, b"ro");
    let is_confined = has_option(options, b"nosuid") && has_option(options, b"nodev");
    let mut shared = false;
    // Any number of optional fields, also ones that later kernels invent, up to a hyphen.
    loop {
        match fields.next()? {
            b"-" => break,
            field => shared |= field.starts_with(b"shared:"),
        }
    }
    let filesystem = String::from_utf8(unescape(fields.next()?).into_vec()).ok()?;
    let source = unescape(fields.next()?);
    let superblock_read_only = has_option(fields.next()?, b"ro");
    Some(Mount {
        id,
        parent,
        number: DeviceNumber { major, minor },
        root: root.into(),
        mount_point: mount_point.into(),
        read_only,
        is_confined,
        shared,
        filesystem,
        source,
        superblock_read_only,
    })
}

fn number(text: &[u8]) -> Option<u64> {
    // `u64::from_str` would take a plus sign.
    if !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn has_option(options: &[u8], option: &[u8]) -> bool {
    options.split(|&c| c == b',').any(|found| found == option)
}

/// Undoes the kernel's `mangle`: a backslash and three octal digits for space, tab, newline,
/// backslash and `#`. Anything else stands for itself.
fn unescape(text: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        match after {
            [
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ] if first == b'\\' => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_line_is_taken_apart() {
        let text = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n\
            722 29 7:3 / /a\\040b\\011c\\134d ro,nosuid,nodev shared:12 master:3 - xfs /dev/loop3 rw,attr2\n\
            40 35 0:44 / /x rw - tmpfs  ro\n";
        let mounts = parse(text).unwrap();
        assert_eq!(mounts.len(), 3);
        let plain = &mounts[0];
        assert_eq!((plain.id, plain.parent, plain.shared), (36, 35, false));
        assert_eq!(plain.root, Path::new("/mnt1"));
        assert_eq!(
            plain.number,
            DeviceNumber {
                major: 98,
                minor: 0
            }
        );
        let escaped = &mounts[1];
        assert_eq!(escaped.mount_point, Path::new("/a b\tc\\d"));
        assert!(escaped.read_only && escaped.shared && !escaped.superblock_read_only);
        assert_eq!(escaped.filesystem, "xfs");
        let nameless = &mounts[2];
        assert_eq!(nameless.source, "");
        assert!(!nameless.read_only && nameless.superblock_read_only);
    }

    #[test]
    fn a_directory_volume_is_told_by_the_root_of_its_mount() {
        let handle = "00112233445566778899aabbccddeeff";
        let volume = |root: &str| {
            let line = format!("36 35 98:0 {root} /mnt rw - ext4 /dev/sda rw\n");
            parse(line.as_bytes()).unwrap()[0].volume()
        };
        let expected = Handle::parse(handle).ok();
        assert_eq!(volume(&format!("/pool/volumes/{handle}")), expected);
        assert_eq!(volume(&format!("/{handle}//deleted")), expected);
        // One that is being removed is one too, or nobody would know what still has it.
        assert_eq!(volume(&format!("/volumes/.gone-{handle}")), expected);
        for root in ["/", &format!("/{handle}/sub"), &format!("/.new-{handle}")] {
            assert_eq!(volume(root), None, "{root}");
        }
        for (root, is_within) in [
            (format!("/{handle}/sub"), true),
            (format!("/.gone-{handle}/sub"), true),
            (format!("/.new-{handle}"), false),
        ] {
            let line = format!("36 35 98:0 {root} /mnt rw - ext4 /dev/sda rw\n");
            let mounts = parse(line.as_bytes()).unwrap();
            assert_eq!(mounts[0].is_within(&expected.unwrap()), is_within, "{root}");
        }
    }

    #[test]
    fn only_the_kernels_escapes_are_undone() {
        for (text, plain) in [
            (&br"a\040b"[..], &b"a b"[..]),
            (br"\134040", br"\040"),
            (br"\04", br"\04"),
            (br"\400", br"\400"),
            (br"\x41\", br"\x41\"),
            (br"\377", b"\xff"),
        ] {
            assert_eq!(unescape(text).as_bytes(), plain);
        }
    }

    #[test]
    fn a_line_no_kernel_writes_is_an_error() {
        for line in [
            &b"36 35 98:0 / /mnt rw master:1 ext3 /dev/root rw"[..],
            b"36 35 98 / /mnt rw - ext3 /dev/root rw",
            b"x 35 98:0 / /mnt rw - ext3 /dev/root rw",
            b"36 +5 98:0 / /mnt rw - ext3 /dev/root rw",
            b"36 35 98:0 / /mnt rw -",
        ] {
            assert!(parse(line).is_err(), "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn the_running_kernels_table_is_understood() {
        assert!(!read().unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn any_name_survives_the_kernels_escapes(name in proptest::collection::vec(1u8.., 0..40)) {
            let mut escaped = Vec::new();
            for &c in &name {
                match c {
                    b' ' | b'\t' | b'\n' | b'\\' | b'#' => {
                        escaped.extend_from_slice(format!("\\{c:03o}").as_bytes());
                    }
                    _ => escaped.push(c),
                }
            }
            let back = unescape(&escaped);
            prop_assert_eq!(back.as_bytes(), &name[..]);
        }

        #[test]
        fn no_text_panics(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&text);
        }
    }
}
