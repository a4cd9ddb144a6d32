//! `/proc/self/mountinfo`: the mounts of this process' mount namespace.
//!
//! The map, not the truth: mounts of other namespaces and lazily unmounted ones are missing here
//! and still hold the device, which only an exclusive open finds out (see [`crate::block::device`]).
//! Format: `proc_pid_mountinfo(5)`, written by `show_mountinfo` in the kernel's
//! `fs/proc_namespace.c`.
//!
//! Names in it are bytes: whoever has a user namespace may mount a FUSE whose type is no text, and
//! every process's table is read. A line that is not understood spoils nothing but itself. Whether a
//! volume is used is told by the fields at a line's beginning, which the kernel writes itself, so
//! a mount of which these can be read is kept, whatever the rest is. A line without them is no
//! mount, but what follows a newline that a file system wrote unescaped into its options.

mod line;
mod lines;
mod namespaces;
mod served;
mod subtree;

pub use line::Line;
pub use namespaces::find_anywhere;
pub(crate) use served::is_on_served;
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
    /// The kernel's name of the file system, and behind a dot what whoever mounted a FUSE calls
    /// it; U+FFFD stands for what is no text, and nothing for what cannot be told.
    pub filesystem: String,
    /// What was mounted, as text; its node may be gone or mean something else by now.
    pub source: OsString,
    /// Whether the file system itself is read-only, as after an error.
    pub superblock_read_only: bool,
    /// Whether it met an error and takes no writes any more, without being read-only (ext4 since Linux 6.12,
    /// `_ext4_show_options` in fs/ext4/super.c).
    pub takes_no_writes: bool,
}

impl Mount {
    /// The volume whose directory is mounted here: that directory's name is its id. Nothing
    /// but this table is needed for it, so it is known also while the pool is not there.
    #[must_use]
    pub fn volume(&self) -> Option<VolumeId> {
        volume_at(&self.root)
    }
}

fn volume_at(root: &Path) -> Option<VolumeId> {
    // What the kernel writes behind a directory that was removed (`seq_dentry`).
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

/// Reads the text of a mountinfo file; what is no mount in it is passed over.
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

/// The mounts of this process' mount namespace, in the kernel's order: a mount comes after the
/// one it covers.
///
/// # Errors
/// When `/proc` is not there or does not tell.
pub fn read() -> Result<Vec<Mount>> {
    let text = fs::read("/proc/self/mountinfo")
        .map_err(|error| Error::system("read the mount table", error))?;
    Ok(parse(&text))
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

/// Whether the file system on a block device is mounted on a place that `counts`, in the mount
/// namespace of any process: a container has its mounts in one of its own.
///
/// # Errors
/// As [`find_anywhere`].
pub fn is_anywhere(device: DeviceNumber, counts: impl Fn(&Path) -> bool) -> Result<bool> {
    find_anywhere(|line| first(line.is_of(device) && counts(&line.mount_point())))
}

/// Whether an open directory, or a part of it, is mounted on a place that `counts`, in the mount
/// namespace of any process.
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

/// Whether a directory that is called as this volume is mounted, in the mount namespace of any process.
/// That tells of a volume that is in no pool, and any directory may be called so.
///
/// # Errors
/// As [`find_anywhere`].
pub fn has_volume(volume: &VolumeId) -> Result<bool> {
    find_anywhere(|line| first(volume_at(&line.root()) == Some(*volume)))
}

/// Looks on until something `is_wanted`.
fn first(is_wanted: bool) -> ControlFlow<()> {
    match is_wanted {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    }
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
        // One that is being removed is one too, or nobody would know what still has it.
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

    /// As a newline leaves it that a file system wrote into its options.
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

    /// It may be one of a volume, and its first fields say so.
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
