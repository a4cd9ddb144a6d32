//! Whether a process that waits in the kernel waits for disks that work. One that is slow, with much queued for it, is no
//! dead one: what tells them apart is whether anything completes.

use nix::unistd::Pid;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// What completes nothing for so long, though something is asked of it, is silent.
pub(super) const SILENT: Duration = Duration::from_secs(30);

/// Where who waits for a thaw waits (`sb_start_write`, include/linux/fs/super.h): before Linux 5.7, and since.
const FREEZE: [&str; 2] = ["__percpu_down_read", "percpu_rwsem_wait"];

/// What functions begin with in which who waits for a server waits.
const SERVERS: [&str; 9] = [
    "afs_",
    "autofs_",
    "ceph_",
    "cifs_",
    "fuse_",
    "nfs",
    "p9_",
    "request_wait_answer",
    "rpc_",
];

/// File systems that a server has, as they begin.
const SERVED: [&str; 8] = ["9p", "afs", "autofs", "ceph", "cifs", "fuse", "nfs", "smb3"];

/// More than disks are stacked.
const DEPTH: usize = 8;

/// What was seen of disks, by their numbers as `8:0`.
#[derive(Default)]
pub(super) struct Disks(BTreeMap<String, Seen>);

struct Seen {
    completed: u64,
    /// When more was than before.
    progress: Option<Instant>,
    in_flight: u64,
    below: Vec<String>,
}

/// One line of a mount table.
struct Mount {
    id: String,
    number: String,
    place: PathBuf,
    kind: String,
    source: String,
}

impl Disks {
    /// Looks once more, and tells whether all that the process may wait for are disks that work.
    pub(super) fn work(&mut self, process: Pid) -> bool {
        let looked = waits_for_disks(process)
            .then(|| disks_of(process))
            .flatten();
        let Some((disks, mounts)) = looked.filter(|(disks, _)| !disks.is_empty()) else {
            return false;
        };
        disks
            .iter()
            .for_each(|disk| self.look(disk, &mounts, DEPTH));
        let is_silent =
            |(disk, seen): (&String, &Seen)| seen.in_flight > 0 && !self.works(disk, DEPTH);
        disks.iter().any(|disk| self.works(disk, DEPTH))
            && !self.0.iter().any(is_silent)
            && !self.0.keys().any(|disk| is_suspended(disk))
    }

    fn look(&mut self, disk: &str, mounts: &[Mount], depth: usize) {
        let counted = fs::read_to_string(of(disk).join("stat"));
        let Some((completed, in_flight)) = counted.ok().and_then(|text| counts(&text)) else {
            return;
        };
        let below = below(disk, mounts);
        let before = self.0.get(disk);
        let progress = match before {
            Some(seen) if seen.completed != completed => Some(Instant::now()),
            before => before.and_then(|seen| seen.progress),
        };
        if depth > 0 {
            below
                .iter()
                .for_each(|next| self.look(next, mounts, depth - 1));
        }
        self.0.insert(
            disk.to_owned(),
            Seen {
                completed,
                progress,
                in_flight,
                below,
            },
        );
    }

    /// Whether something completed, here, or where it waits for what is below it, there.
    fn works(&self, disk: &str, depth: usize) -> bool {
        self.0.get(disk).is_some_and(|seen| {
            let progress = seen.progress.is_some_and(|at| at.elapsed() < SILENT);
            let waits = seen.in_flight > 0 && depth > 0;
            progress || waits && seen.below.iter().any(|next| self.works(next, depth - 1))
        })
    }
}

/// Whether the kernel tells where the threads of a process wait, and none of them waits for a thaw or for a server.
fn waits_for_disks(process: Pid) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else {
        return false;
    };
    threads.flatten().all(|thread| {
        let place = fs::read_to_string(thread.path().join("wchan"));
        place.is_ok_and(|place| may_be_a_disk(place.trim()))
    })
}

fn may_be_a_disk(place: &str) -> bool {
    let is_known = !place.is_empty() && place != "0";
    is_known && !FREEZE.contains(&place) && !SERVERS.iter().any(|server| place.starts_with(server))
}

/// The disks that a process has files or directories open on, and the mounts that it sees; `None` where one of the files is
/// on a server. No file is asked.
fn disks_of(process: Pid) -> Option<(BTreeSet<String>, Vec<Mount>)> {
    let table = fs::read(format!("/proc/{process}/mountinfo")).ok()?;
    let mounts: Vec<Mount> = String::from_utf8_lossy(&table)
        .lines()
        .filter_map(Mount::read)
        .collect();
    let mut disks = BTreeSet::new();
    for open in fs::read_dir(format!("/proc/{process}/fd")).ok()?.flatten() {
        let name = open.file_name();
        let info = format!("/proc/{process}/fdinfo/{}", name.display());
        // It may have been closed.
        let info = fs::read_to_string(info).unwrap_or_default();
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
        let mount = id.and_then(|id| mounts.iter().find(|mount| mount.id == id.trim()));
        if mount.is_some_and(Mount::is_served) {
            return None;
        }
        disks.extend(mount.and_then(Mount::disk));
        if let Ok(path) = fs::read_link(open.path()) {
            disks.extend(number_of_node(&path));
        }
    }
    Some((disks, mounts))
}

impl Mount {
    /// proc_pid_mountinfo(5).
    fn read(line: &str) -> Option<Mount> {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ');
        let (id, number) = (fields.next()?, fields.nth(1)?);
        let place = fields.nth(1)?;
        let mut kind = kind.split(' ');
        Some(Mount {
            id: id.to_owned(),
            number: number.to_owned(),
            place: place.replace("\\040", " ").into(),
            kind: kind.next()?.to_owned(),
            source: kind.next().unwrap_or_default().to_owned(),
        })
    }

    fn is_served(&self) -> bool {
        SERVED.iter().any(|kind| self.kind.starts_with(kind))
    }

    /// Btrfs has a number of its own.
    fn disk(&self) -> Option<String> {
        match self.number.starts_with("0:") {
            true => number_of_node(Path::new(&self.source)),
            false => Some(self.number.clone()),
        }
    }
}

/// The number of the disk whose node this is.
fn number_of_node(path: &Path) -> Option<String> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    if !path.starts_with("/dev") && !path.starts_with("/run/flexvol") {
        return None;
    }
    let found = fs::metadata(path).ok()?;
    let number = found.rdev();
    let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
    found
        .file_type()
        .is_block_device()
        .then(|| format!("{major}:{minor}"))
}

fn of(disk: &str) -> PathBuf {
    Path::new("/sys/dev/block").join(disk)
}

/// The disks that one lies on: those of a device mapping or an array, or that of the file of a loop device.
fn below(disk: &str, mounts: &[Mount]) -> Vec<String> {
    let number = |path: PathBuf| Some(fs::read_to_string(path).ok()?.trim_end().to_owned());
    if let Ok(file) = fs::read_to_string(of(disk).join("loop/backing_file")) {
        let above = mounts
            .iter()
            .filter(|mount| Path::new(&file).starts_with(&mount.place));
        let holds = above.max_by_key(|mount| mount.place.as_os_str().len());
        return holds.and_then(Mount::disk).into_iter().collect();
    }
    let slaves = fs::read_dir(of(disk).join("slaves"));
    let slaves = slaves.into_iter().flatten().flatten();
    slaves
        .filter_map(|slave| number(slave.path().join("dev")))
        .collect()
}

fn is_suspended(disk: &str) -> bool {
    let suspended = fs::read_to_string(of(disk).join("dm/suspended"));
    suspended.is_ok_and(|suspended| suspended.trim_end() == "1")
}

/// How many requests of all kinds a disk has completed, and how many it has not
/// (Documentation/block/stat.rst; discards are there since Linux 4.18, flushes since 5.5).
fn counts(stat: &str) -> Option<(u64, u64)> {
    let fields: Vec<u64> = stat
        .split_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    let completed = [0, 4, 11, 15].iter().filter_map(|field| fields.get(*field));
    Some((completed.sum(), *fields.get(8)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(progress: bool, in_flight: u64, below: &[&str]) -> Seen {
        Seen {
            completed: 0,
            progress: progress.then(Instant::now),
            in_flight,
            below: below.iter().map(|&disk| disk.to_owned()).collect(),
        }
    }

    #[test]
    fn a_disk_works_while_it_or_what_it_waits_for_completes_something() {
        let disks = Disks(BTreeMap::from([
            ("8:0".to_owned(), seen(true, 1, &[])),
            ("8:16".to_owned(), seen(false, 1, &[])),
            // A flush waits for all that is queued below.
            ("7:0".to_owned(), seen(false, 1, &["8:0"])),
            // A frozen file system asks nothing of its disk, which is busy with others.
            ("253:0".to_owned(), seen(false, 0, &["8:0"])),
            ("7:1".to_owned(), seen(false, 1, &["253:0"])),
            ("7:2".to_owned(), seen(false, 1, &["8:16"])),
        ]));
        for (disk, works) in [
            ("8:0", true),
            ("8:16", false),
            ("7:0", true),
            ("253:0", false),
            ("7:1", false),
            ("7:2", false),
            ("9:9", false),
        ] {
            assert_eq!(disks.works(disk, DEPTH), works, "{disk}");
        }
    }

    #[test]
    fn who_waits_for_a_thaw_or_a_server_waits_for_no_disk() {
        for place in [
            "percpu_rwsem_wait",
            "request_wait_answer",
            "rpc_wait_bit_killable",
            "0",
            "",
        ] {
            assert!(!may_be_a_disk(place), "{place}");
        }
        for place in [
            "folio_wait_bit_common",
            "wb_wait_for_completion",
            "blk_wait_io",
        ] {
            assert!(may_be_a_disk(place), "{place}");
        }
    }

    #[test]
    fn tables_of_the_kernel_are_read() {
        let stat = " 1 0 8 0 20 0 160 4 3 4 4 300 0 0 0 4000 0\n";
        assert_eq!(counts(stat), Some((4321, 3)));
        assert_eq!(counts(" 1 0 8 0 20 0 160 4 3 4 4\n"), Some((21, 3)));
        assert_eq!(counts(""), None);
        let line = "36 25 7:0 / /mnt/a\\040b rw,noatime shared:1 - ext4 /dev/loop0 rw";
        let mount = Mount::read(line).unwrap();
        assert_eq!(mount.disk().as_deref(), Some("7:0"));
        assert_eq!(
            (mount.id.as_str(), mount.place.to_str()),
            ("36", Some("/mnt/a b"))
        );
        assert!(!mount.is_served());
        assert!(Mount::read("").is_none());
    }
}
