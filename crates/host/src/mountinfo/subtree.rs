//! A directory within its file system, as the roots of mounts describe it.

use super::{Line, Mount};
use crate::block::number::DeviceNumber;
use flexvol_sdk::{Error, ErrorKind, Result};
use std::{
    fs,
    os::fd::{AsRawFd, BorrowedFd},
    path::{Path, PathBuf},
};

/// A directory and everything below it. Names below the top prove nothing: whoever writes to a volume may name a
/// directory like another volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subtree {
    number: DeviceNumber,
    top: PathBuf,
}

impl Subtree {
    /// Returns the subtree below an open directory; `table` has the mounts in this mount namespace.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`] when the directory's place is unknown.
    pub fn of(directory: BorrowedFd<'_>, table: &[Mount]) -> Result<Self> {
        let failed = |error| Error::system("find the volume's directory", error);
        let id = super::id_of(&directory).map_err(failed)?;
        let path = fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        let path = path.map_err(failed)?;
        let within = |mount: &Mount| {
            let below = path.strip_prefix(&mount.mount_point).ok()?;
            Some(Subtree {
                number: mount.number,
                top: mount.root.join(below),
            })
        };
        let mount = table.iter().find(|mount| mount.id == id);
        mount.and_then(within).ok_or_else(|| {
            Error::new(
                ErrorKind::Storage,
                "cannot tell where the volume is mounted: the mount table does not have its directory",
            )
        })
    }

    /// Whether a mount shows the directory or a part of it.
    #[must_use]
    pub fn has(&self, line: &Line<'_>) -> bool {
        line.number == self.number && self.shows(&line.root())
    }

    /// As [`Subtree::has`], for a parsed mount.
    #[must_use]
    pub fn has_mount(&self, mount: &Mount) -> bool {
        mount.number == self.number && self.shows(&mount.root)
    }

    fn shows(&self, root: &Path) -> bool {
        // A removed directory that is still mounted has `//deleted` appended (`seq_dentry`).
        root.starts_with(&self.top)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mountinfo::{parse, read};
    use std::{fs::File, os::fd::AsFd};

    const OURS: &str = "00112233445566778899aabbccddeeff";
    const THEIRS: &str = "ffeeddccbbaa99887766554433221100";

    fn subtree(top: &str) -> Subtree {
        Subtree {
            number: DeviceNumber { major: 8, minor: 1 },
            top: top.into(),
        }
    }

    #[test]
    fn only_what_lies_below_the_directory_shows_it() {
        let ours = subtree(&format!("/pool/volumes/{OURS}"));
        for (number, root, shows) in [
            ("8:1", format!("/pool/volumes/{OURS}"), true),
            ("8:1", format!("/pool/volumes/{OURS}//deleted"), true),
            ("8:1", format!("/pool/volumes/{OURS}/sub"), true),
            ("8:1", format!("/pool/volumes/{OURS}/sub//deleted"), true),
            // Users of another volume choose the names below its root.
            ("8:1", format!("/pool/volumes/{THEIRS}/{OURS}"), false),
            (
                "8:1",
                format!("/pool/volumes/{THEIRS}/volumes/{OURS}"),
                false,
            ),
            ("8:1", format!("/pool/volumes/.new-{OURS}"), false),
            ("8:1", format!("/pool/volumes/{OURS}0"), false),
            ("8:1", "/pool/volumes".to_owned(), false),
            ("8:1", "/".to_owned(), false),
            ("8:2", format!("/pool/volumes/{OURS}"), false),
        ] {
            let line = format!("36 35 {number} {root} /mnt rw - ext4 /dev/sda rw\n");
            assert_eq!(ours.has_mount(&parse(line.as_bytes())[0]), shows, "{root}");
        }
    }

    #[test]
    fn a_pool_may_lie_in_a_volume() {
        let inner = subtree(&format!("/volumes/{THEIRS}/pool/volumes/{OURS}"));
        for (below, shows) in [("", true), ("/a", true), ("/../x", false)] {
            let root = match below {
                "/../x" => format!("/volumes/{THEIRS}/pool"),
                below => format!("/volumes/{THEIRS}/pool/volumes/{OURS}{below}"),
            };
            let line = format!("36 35 8:1 {root} /mnt rw - ext4 /dev/sda rw\n");
            assert_eq!(inner.has_mount(&parse(line.as_bytes())[0]), shows, "{root}");
        }
    }

    #[test]
    fn a_directory_is_found_below_the_mount_it_lies_on() {
        let made = tempfile::tempdir().unwrap();
        let made = made.path().canonicalize().unwrap();
        let inside = made.join("a b/c");
        fs::create_dir_all(&inside).unwrap();
        let table = read().unwrap();
        let subtree = |path: &PathBuf| {
            let directory = File::open(path).unwrap();
            Subtree::of(directory.as_fd(), &table).unwrap()
        };
        let (outer, inner) = (subtree(&made), subtree(&inside));
        assert_eq!(outer.number, inner.number);
        assert_eq!(inner.top, outer.top.join("a b/c"));
        let directory = File::open(&inside).unwrap();
        assert!(Subtree::of(directory.as_fd(), &[]).is_err());
    }
}
