//! Snapshots of a sandbox's state on the node, compared before and after a test to find leaks and losses.

use crate::{Sandbox, mounts, patience, volume_id};
use nix::sys::statvfs::statvfs;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Everything in a sandbox that a callout can leave behind, one item a line, in a deterministic order: mounts, loop
/// devices by the inode of their backing file, files of the pool, free bytes of the pool's file system, the driver's
/// temporary files, and holders of its locks.
///
/// Names of volumes' files are random and are not shown. Inodes are shown only as "image of the pool" or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Baseline {
    lines: Vec<String>,
    /// Free blocks and inodes of the pool's file system. Blocks of the pool's directories count as free, because ext4
    /// never shrinks a directory.
    space: Option<[u64; 2]>,
}

impl Baseline {
    /// Takes a snapshot.
    ///
    /// # Panics
    /// When something cannot be examined.
    #[must_use]
    pub fn of(sandbox: &Sandbox) -> Self {
        let mut lines = Vec::new();
        for mount in mounts::below(sandbox.root()) {
            let point = mount
                .point
                .strip_prefix(sandbox.root())
                .unwrap_or(&mount.point);
            let mode = if mount.read_only { "ro" } else { "rw" };
            lines.push(format!(
                "mount {} on {} {mode}",
                mount.filesystem,
                point.display()
            ));
        }
        let mut images = BTreeSet::new();
        files(&sandbox.pool(), &sandbox.pool(), &mut lines, &mut images);
        for backing in sandbox.loops() {
            let image = if images.contains(&backing.inode) {
                "a volume"
            } else {
                "a lost file"
            };
            let end = if backing.autoclear {
                "autoclear"
            } else {
                "stays"
            };
            lines.push(format!("loop on {image}, {end}"));
        }
        let disk = File::open(sandbox.disk()).expect("open the pool's disk");
        nix::unistd::syncfs(&disk).expect("sync the pool's disk");
        let space = statvfs(&sandbox.disk()).expect("ask for the pool's space");
        lines.extend(temporary_files());
        lines.extend(lock_holders(&sandbox.remember(volumes(&sandbox.pool()))));
        lines.sort();
        Baseline {
            lines,
            space: sandbox.returns_space().then(|| {
                let lists = length_of_lists(&sandbox.pool()) / space.fragment_size();
                [space.blocks_free() + lists, space.files_free()]
            }),
        }
    }

    /// Excludes the pool's free space from comparisons: the number of blocks of a file's extent map depends on the
    /// order of its writes.
    #[must_use]
    pub fn without_space(self) -> Self {
        Baseline {
            space: None,
            ..self
        }
    }

    /// Waits until the sandbox equals this snapshot: a loop device is released a moment after its last user. On timeout
    /// the test fails with the differences.
    ///
    /// # Panics
    /// When it still differs after two seconds, times [`patience`].
    #[track_caller]
    pub fn expect(&self, sandbox: &Sandbox, when: &str) {
        let deadline = Instant::now() + Duration::from_secs(2) * patience();
        loop {
            let difference = self.difference(&Baseline::of(sandbox));
            if difference.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{when}:\n{difference}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the lines that only one of them has: `-` this one, `+` the other; empty when they are equal.
    #[must_use]
    pub fn difference(&self, other: &Baseline) -> String {
        let mut text = String::new();
        let mut unmatched = other.lines.clone();
        for line in &self.lines {
            match unmatched.iter().position(|candidate| candidate == line) {
                Some(at) => drop(unmatched.remove(at)),
                None => text += &format!("  - {line}\n"),
            }
        }
        for line in unmatched {
            text += &format!("  + {line}\n");
        }
        if let Some((here, there)) = self.space.zip(other.space).filter(|(a, b)| a != b) {
            text += &format!("  - blocks and inodes free: {here:?}\n  + {there:?}\n");
        }
        text
    }
}

/// Returns the bytes on disk of a directory and of those below it, without their files.
fn length_of_lists(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else {
        return 0;
    };
    let below = entries.flatten().filter(|entry| {
        let kind = entry.file_type();
        kind.is_ok_and(|kind| kind.is_dir())
    });
    let own = fs::symlink_metadata(dir).map_or(0, |metadata| metadata.blocks() * 512);
    own + below
        .map(|entry| length_of_lists(&entry.path()))
        .sum::<u64>()
}

fn files(dir: &Path, pool: &Path, lines: &mut Vec<String>, images: &mut BTreeSet<u64>) {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        // The pool does not exist or was removed meanwhile: its disk is not mounted.
        Err(_) => return,
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(found) = fs::symlink_metadata(&path) else {
            continue;
        };
        if found.is_dir() {
            files(&path, pool, lines, images);
            continue;
        }
        images.insert(found.ino());
        let name = path
            .strip_prefix(pool)
            .unwrap_or(&path)
            .to_string_lossy()
            .into_owned();
        lines.push(format!(
            "file {} {} bytes",
            without_handle(&name),
            found.len()
        ));
    }
}

/// Replaces every 32 hexadecimal digits by a word, because handles are random.
fn without_handle(name: &str) -> String {
    let is_handle = |part: &str| part.len() == 32 && part.bytes().all(|b| b.is_ascii_hexdigit());
    let parts = name.split_inclusive(['/', '-', '.']);
    parts
        .map(|part| {
            let bare = part.trim_end_matches(['/', '-', '.']);
            if is_handle(bare) {
                part.replace(bare, "HANDLE")
            } else {
                part.to_owned()
            }
        })
        .collect()
}

/// Directories that stay by design: locks, promised names, and nodes for devices that /dev lacks, which it does for a
/// moment when a device is new.
const LASTING: [&str; 3] = ["dev", "lock", "names"];

/// Returns temporary files.
fn temporary_files() -> Vec<String> {
    let entries = fs::read_dir("/run/flexvol").into_iter().flatten().flatten();
    entries
        .filter(|entry| !LASTING.iter().any(|name| entry.file_name() == *name))
        .flat_map(|entry| {
            let inside = fs::read_dir(entry.path()).into_iter().flatten().flatten();
            inside.map(|file| file.path())
        })
        .map(|path| format!("temporary {}", path.display()))
        .collect()
}

/// Returns the ids of a pool's volumes: of images, and of the handles in names.
fn volumes(pool: &Path) -> BTreeSet<String> {
    let list = |dir: &str| fs::read_dir(pool.join(dir)).into_iter().flatten().flatten();
    let images = list("volumes").map(|entry| entry.file_name());
    let handles = list("names").filter_map(|entry| fs::read_link(entry.path()).ok());
    let named = handles.map(|handle| volume_id(&handle.to_string_lossy()));
    let all = images
        .map(|name| name.to_string_lossy().into_owned())
        .chain(named);
    all.map(|name| name.trim_start_matches(".creating-").to_owned())
        .collect()
}

/// Returns the held locks of these volumes. Lock files themselves stay by design.
fn lock_holders(volumes: &BTreeSet<String>) -> Vec<String> {
    let locks = fs::read_dir("/run/flexvol/lock")
        .into_iter()
        .flatten()
        .flatten();
    let own: BTreeSet<_> = locks
        .filter(|entry| volumes.contains(&*entry.file_name().to_string_lossy()))
        .filter_map(|entry| entry.metadata().ok())
        .map(|found| {
            let (major, minor) = (
                nix::sys::stat::major(found.dev()),
                nix::sys::stat::minor(found.dev()),
            );
            format!("{major:02x}:{minor:02x}:{}", found.ino())
        })
        .collect();
    let table = fs::read_to_string("/proc/locks").expect("read the kernel's locks");
    table
        .lines()
        .filter_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let file = *fields.get(5)?;
            (fields.get(1) == Some(&"FLOCK") && own.contains(file))
                .then(|| "a volume's lock is held".to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_what_is_new_and_what_is_gone() {
        let lines = |lines: &[&str]| Baseline {
            lines: lines.iter().map(ToString::to_string).collect(),
            space: None,
        };
        let before = lines(&["loop", "loop", "mount"]);
        assert_eq!(before.difference(&before), "");
        let after = lines(&["loop", "file"]);
        assert_eq!(before.difference(&after), "  - loop\n  - mount\n  + file\n");
    }

    #[test]
    fn handles_are_left_out_of_names() {
        let handle = "00112233445566778899aabbccddeeff";
        assert_eq!(
            without_handle(&format!("volumes/{handle}")),
            "volumes/HANDLE"
        );
        assert_eq!(
            without_handle(&format!("volumes/.creating-{handle}")),
            "volumes/.creating-HANDLE"
        );
        assert_eq!(without_handle("names/pv-1"), "names/pv-1");
    }
}
