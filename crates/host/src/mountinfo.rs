//! `/proc/self/mountinfo`: the mounts in this process' mount namespace.
//!
//! The table is incomplete: mounts of other namespaces and lazily unmounted ones are missing, but still hold the
//! device. Only an exclusive open detects them (see [`crate::block::device`]). Format: `proc_pid_mountinfo(5)`, written
//! by `show_mountinfo` in the kernel's `fs/proc_namespace.c`.
//!
//! Names are bytes: any user with a user namespace may mount a FUSE whose type is not UTF-8, and every process' table
//! is read. A malformed line must not affect other lines. Whether a volume is in use depends on the first fields of a
//! line, which the kernel writes itself. So a mount with valid first fields counts, whatever the rest is. A line
//! without them is not a mount, but the text after a newline that a file system wrote unescaped into its options.

mod line;
mod lines;
mod namespaces;
mod remote;
mod subtree;

pub use line::Line;
pub use namespaces::find_anywhere;
pub(crate) use remote::is_on_remote;
pub use subtree::Subtree;

use crate::{VolumeId, block::number::DeviceNumber};
use flexvol_sdk::{Error, Result};
use rustix::io::Errno;
use std::{
    ffi::OsString,
    fs, io,
    ops::ControlFlow,
    os::{
        fd::{AsRawFd, BorrowedFd},
        unix::fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

/// One line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Id of the mount, unique while it exists.
    pub id: u64,
    /// Id of the mount that this one is mounted on.
    pub parent: u64,
    /// `st_dev` of its files. For Btrfs this is an anonymous number, not the block device's.
    pub number: DeviceNumber,
    /// Directory of the file system that is the mount's root; not `/` for bind mounts of a part.
    pub root: PathBuf,
    /// The mount point, as seen from this process' root.
    pub mount_point: PathBuf,
    /// Whether this mount is read-only. The file system may still be written through another mount.
    pub read_only: bool,
    /// Whether the mount is `nosuid` and `nodev`, as all mounts by the driver are.
    pub is_confined: bool,
    /// Whether the mount is shared: mounts below it propagate to other mount namespaces.
    pub shared: bool,
    /// File system type; for FUSE, followed by a dot and the subtype chosen by the user. Invalid UTF-8 becomes U+FFFD.
    /// Empty if the line is malformed.
    pub filesystem: String,
    /// The mounted source, as text. Its device node may be gone or be another device by now.
    pub source: OsString,
    /// Whether the file system itself is read-only, as after an error.
    pub superblock_read_only: bool,
    /// Whether the file system had an error and refuses writes without being read-only (ext4 since Linux 6.12,
    /// `_ext4_show_options` in fs/ext4/super.c).
    pub takes_no_writes: bool,
}

impl Mount {
    /// Returns the volume whose directory is mounted here; the directory's name is the volume id. Needs only the mount
    /// table, so it works while the pool is missing.
    #[must_use]
    pub fn volume(&self) -> Option<VolumeId> {
        volume_at(&self.root)
    }
}

fn volume_at(root: &Path) -> Option<VolumeId> {
    // The kernel appends this to a removed directory (`seq_dentry`).
    let root = root.as_os_str().as_encoded_bytes();
    let root = root.strip_suffix(b"//deleted").unwrap_or(root);
    let (_, name) = str::from_utf8(root).ok()?.rsplit_once('/')?;
    VolumeId::parse(name).ok()
}

impl Mount {
    /// Whether this is a mount of the file system on a block device.
    #[must_use]
    pub fn is_of(&self, device: DeviceNumber) -> bool {
        self.number == device || is_btrfs_on(self, device)
    }
}

/// Parses a mountinfo file. Lines that are not mounts are skipped.
#[must_use]
pub fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|&c| c == b'\n')
        .filter(|line| !line.is_empty())
        .filter_map(|line| {
            let mount = Line::read(line).map(|line| line.mount());
            if mount.is_none() {
                log::debug!("no mount: {}", line.escape_ascii());
            }
            mount
        })
        .collect()
}

/// Returns the mounts in this process' mount namespace, in the kernel's order: a mount follows the one it covers.
///
/// # Errors
/// When `/proc` is not mounted or unreadable.
pub fn read() -> Result<Vec<Mount>> {
    let text = fs::read("/proc/self/mountinfo")
        .map_err(|error| Error::system("read the mount table", error))?;
    Ok(parse(&text))
}

/// Returns the mounts, in this namespace, of the file system on a block device.
///
/// # Errors
/// As [`read`].
pub fn mounts_of(device: DeviceNumber) -> Result<Vec<Mount>> {
    let mut mounts = read()?;
    mounts.retain(|mount| mount.is_of(device));
    Ok(mounts)
}

/// Whether the file system on a block device is mounted, in any process' mount namespace, at a mount point that
/// `counts`. Containers have mount namespaces of their own.
///
/// # Errors
/// As [`find_anywhere`].
pub fn is_anywhere(device: DeviceNumber, counts: impl Fn(&Path) -> bool) -> Result<bool> {
    find_anywhere(|line| first(line.is_of(device) && counts(&line.mount_point())))
}

/// Whether an open directory, or a part of it, is mounted, in any process' mount namespace, at a mount point that
/// `counts`.
///
/// # Errors
/// As [`find_anywhere`].
pub fn is_directory_anywhere(
    directory: BorrowedFd<'_>,
    counts: impl Fn(&Path) -> bool,
) -> Result<bool> {
    let subtree = Subtree::of(directory, &read()?)?;
    find_anywhere(|line| first(subtree.has(line) && counts(&line.mount_point())))
}

/// Whether a directory named like this volume is mounted in any process' mount namespace. Works for a volume that is in
/// no pool, but is only a hint: any directory may have this name.
///
/// # Errors
/// As [`find_anywhere`].
pub fn has_volume(volume: &VolumeId) -> Result<bool> {
    find_anywhere(|line| first(volume_at(&line.root()) == Some(*volume)))
}

/// Ends a search once something `is_wanted`.
fn first(is_wanted: bool) -> ControlFlow<()> {
    match is_wanted {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    }
}

/// Returns the id of the mount through which a file was opened (`proc_pid_fdinfo(5)`, since Linux 3.15).
pub(crate) fn id_of(file: &impl AsRawFd) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let id = text
        .lines()
        .find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| Errno::IO.into())
}

/// Whether a mount is of the Btrfs on a device. Btrfs mounts have anonymous device numbers, so the source is compared:
/// the device node or, if that is gone, its name, which is the kernel's name or the number as text.
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

#[cfg(test)]
mod tests {
    use super::{line::unescape, *};
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_line_is_taken_apart() {
        let text = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n\
            722 29 7:3 / /a\\040b\\011c\\134d ro,nosuid,nodev shared:12 master:3 - xfs /dev/loop3 rw,attr2\n\
            40 35 0:44 / /x rw - tmpfs  ro\n";
        let mounts = parse(text);
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
        let id = "00112233445566778899aabbccddeeff";
        let volume = |root: &str| {
            let line = format!("36 35 98:0 {root} /mnt rw - ext4 /dev/sda rw\n");
            parse(line.as_bytes())[0].volume()
        };
        let expected = VolumeId::parse(id).ok();
        assert_eq!(volume(&format!("/pool/volumes/{id}")), expected);
        assert_eq!(volume(&format!("/{id}//deleted")), expected);
        // A volume being removed counts, so that its users can be found.
        assert_eq!(volume(&format!("/volumes/.gone-{id}/{id}")), expected);
        for root in ["/", &format!("/{id}/sub"), &format!("/.new-{id}")] {
            assert_eq!(volume(root), None, "{root}");
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
    fn a_type_and_a_source_that_are_no_text_are_read() {
        let table = b"36 35 0:44 / /a rw - fuse.\xff\xfe \xfd\\040x rw,user_id=0\n\
            37 35 98:0 / /b rw - ext4 /dev/sda ro\n";
        let mounts = parse(table);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].filesystem, "fuse.\u{fffd}\u{fffd}");
        assert_eq!(mounts[0].source.as_bytes(), b"\xfd x");
        assert!(mounts[1].superblock_read_only && !mounts[0].superblock_read_only);
    }

    /// Such a line results from a newline that a file system wrote into its options.
    #[test]
    fn a_line_that_is_no_mount_spoils_only_itself() {
        let before = "36 35 98:0 /r /mnt rw shared:1 - ext3 /dev/root rw";
        let after = "37 36 98:1 / /mnt/x ro - ext4 /dev/sda rw";
        let expected = parse(format!("{before}\n{after}\n").as_bytes());
        assert_eq!(expected.len(), 2);
        for line in [
            &b"x 35 98:0 / /mnt rw - ext3 /dev/root rw"[..],
            b"36 35 98 / /mnt rw - ext3 /dev/root rw",
            b"36 +5 98:0 / /mnt rw - ext3 /dev/root rw",
            b"36 35 98:0 /",
            b"=rw \xff\xfe",
            b" ",
        ] {
            let table = [before.as_bytes(), line, after.as_bytes()].join(&b'\n');
            assert_eq!(parse(&table), expected, "{}", line.escape_ascii());
        }
    }

    /// The mount may be a volume's, according to its first fields.
    #[test]
    fn a_mount_whose_line_is_broken_behind_its_place_is_not_hidden() {
        for line in [
            &b"36 35 98:0 /r /mnt rw master:1 ext3 /dev/root rw"[..],
            b"36 35 98:0 /r /mnt rw -",
            b"36 35 98:0 /r /mnt rw - ext3",
            b"36 35 98:0 /r /mnt",
        ] {
            let mounts = parse(line);
            assert_eq!(mounts.len(), 1, "{}", line.escape_ascii());
            assert_eq!(mounts[0].root, Path::new("/r"));
            let number = DeviceNumber {
                major: 98,
                minor: 0,
            };
            assert!(mounts[0].is_of(number), "{}", line.escape_ascii());
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
