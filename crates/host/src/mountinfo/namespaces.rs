//! Mount tables of all processes.
//!
//! A user with a user namespace can create any number of mounts and processes, so memory use must not depend on these:
//! tables are processed line by line, and callers keep what they need. For each read of a table, the kernel iterates
//! over all mounts of the namespace, however few are visible from the reader's root, and a user who can chroot can
//! create as many roots as processes. So if the processes of a namespace have several roots, its table is read from the
//! namespace's own root, which shows everything that is not covered.

mod effort;
mod whole;

use super::{Line, id_of, lines};
use effort::Effort;
use flexvol_sdk::{Error, ErrorKind, Result};
use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    io::Errno,
};
use std::{
    collections::{HashMap, HashSet, hash_map::RandomState},
    fs::{self, File, ReadDir},
    hash::BuildHasher,
    io,
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Timeout of a search. A node with 500 containers has fifty thousand mounts, which take a second.
const TIME: Duration = Duration::from_secs(20);

/// Passes all mounts to `wanted`, of every mount namespace with a thread visible in `/proc`, until `wanted` returns
/// `Break`. Reads each namespace from as few roots as possible. Returns whether `wanted` returned `Break`.
///
/// # Errors
/// When a thread's mounts are unreadable, or there are too many mounts, because any may be hidden then. Threads that
/// end meanwhile are skipped.
pub fn find_anywhere(wanted: impl FnMut(&Line<'_>) -> ControlFlow<()>) -> Result<bool> {
    Search::within(TIME, wanted).run()
}

/// Process id and thread id.
type Task = (u32, u32);

/// What was seen of a mount namespace. Names are hashed with a random key, because users choose the paths of roots.
enum Seen {
    Whole,
    /// The mounts seen from this root, which is not the topmost one. These threads have other roots.
    From(u64, Vec<Task>),
}

struct Search<F> {
    wanted: F,
    time: Duration,
    end: Instant,
    seen: HashMap<u64, Seen>,
    hasher: RandomState,
    mounts: u64,
    tables: u64,
    effort: Effort,
}

impl<F: FnMut(&Line<'_>) -> ControlFlow<()>> Search<F> {
    fn within(time: Duration, wanted: F) -> Self {
        Search {
            wanted,
            time,
            end: Instant::now() + time,
            seen: HashMap::new(),
            hasher: RandomState::new(),
            mounts: 0,
            tables: 0,
            effort: Effort::default(),
        }
    }

    fn run(mut self) -> Result<bool> {
        let failed = |error: io::Error| Error::system("list processes", error);
        for entry in fs::read_dir("/proc").map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let Some(process) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // A thread may have another namespace and root than the main thread, and outlive it.
            let found = threads(process).and_then(|threads| self.any_of(process, threads));
            if self.judge(process, found)? {
                return Ok(true);
            }
        }
        let seen = std::mem::take(&mut self.seen);
        for seen in seen.into_values() {
            let Seen::From(root, tasks) = seen else {
                continue;
            };
            let Some((process, _)) = tasks.first().copied() else {
                continue;
            };
            let found = self.other_roots(root, tasks);
            if self.judge(process, found)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn judge(&self, process: u32, found: io::Result<ControlFlow<()>>) -> Result<bool> {
        match found {
            Ok(found) => Ok(found.is_break()),
            Err(error) if has_ended(&error) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(self.too_many()),
            Err(error) => Err(Error::system("read the mount table of a process", error)
                .because(format!("process {process}"))),
        }
    }

    fn any_of(&mut self, process: u32, threads: ReadDir) -> io::Result<ControlFlow<()>> {
        for thread in threads {
            let thread = thread?.file_name();
            let Some(thread) = thread.to_str().and_then(|thread| thread.parse().ok()) else {
                continue;
            };
            // Other threads may live in the namespace of one that ended.
            match self.thread((process, thread)) {
                Err(error) if has_ended(&error) => {}
                Ok(ControlFlow::Continue(())) => {}
                found => return found,
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn thread(&mut self, task: Task) -> io::Result<ControlFlow<()>> {
        in_time(self.end)?;
        let thread = directory(task);
        // The table may be readable even if these links are not.
        let namespace = fs::read_link(thread.join("ns/mnt")).ok();
        let root = fs::read_link(thread.join("root")).ok();
        let Some((namespace, root)) = namespace.zip(root) else {
            return self.table(task, File::open(thread.join("mountinfo"))?, |_| ());
        };
        // A thread sees only mounts below its root. From the topmost root it sees all.
        let is_whole = root == Path::new("/");
        let (namespace, root) = (
            self.hasher.hash_one(&namespace),
            self.hasher.hash_one(&root),
        );
        match self.seen.get_mut(&namespace) {
            Some(Seen::Whole) => return Ok(ControlFlow::Continue(())),
            Some(Seen::From(seen, _)) if *seen == root => return Ok(ControlFlow::Continue(())),
            Some(Seen::From(_, others)) if !is_whole => {
                others.push(task);
                return Ok(ControlFlow::Continue(()));
            }
            _ => {}
        }
        let found = self.table(task, File::open(thread.join("mountinfo"))?, |_| ())?;
        let seen = match is_whole {
            true => Seen::Whole,
            false => Seen::From(root, Vec::new()),
        };
        self.seen.insert(namespace, seen);
        Ok(found)
    }

    /// Reads a namespace from its own root, and then from those threads' roots that are on mounts not shown there,
    /// because a mount on the topmost root covers them.
    fn other_roots(&mut self, seen: u64, tasks: Vec<Task>) -> io::Result<ControlFlow<()>> {
        let mut hidden: HashMap<u64, Vec<Task>> = HashMap::new();
        for task in tasks.iter().copied() {
            in_time(self.end)?;
            match mount_of_root(task) {
                Ok(mount) => hidden.entry(mount).or_default().push(task),
                Err(error) if has_ended(&error) => {}
                Err(error) => return Err(error),
            }
        }
        for task in tasks {
            let namespace = directory(task).join("ns/mnt");
            match whole::table(&namespace, self.end) {
                Ok(table) => {
                    let shown = |line: &Line<'_>| drop(hidden.remove(&line.id));
                    if self.table(task, table, shown)?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                    break;
                }
                Err(error) if has_ended(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(error),
                Err(error) => {
                    log::debug!("cannot enter a mount namespace: {error}");
                    break;
                }
            }
        }
        let mut roots = HashSet::from([seen]);
        for task in hidden.into_values().flatten() {
            let thread = directory(task);
            let found = fs::read_link(thread.join("root")).and_then(|root| {
                match roots.insert(self.hasher.hash_one(&root)) {
                    true => self.table(task, File::open(thread.join("mountinfo"))?, |_| ()),
                    false => Ok(ControlFlow::Continue(())),
                }
            });
            match found {
                Err(error) if has_ended(&error) => {}
                Ok(ControlFlow::Continue(())) => {}
                found => return found,
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn table(
        &mut self,
        task: Task,
        table: File,
        mut shown: impl FnMut(&Line<'_>),
    ) -> io::Result<ControlFlow<()>> {
        let began = Instant::now();
        let (end, mounts, wanted) = (self.end, &mut self.mounts, &mut self.wanted);
        let read = lines::each(
            table,
            || in_time(end),
            |line| match Line::read(line) {
                Some(line) => {
                    *mounts += 1;
                    shown(&line);
                    wanted(&line)
                }
                None => ControlFlow::Continue(()),
            },
        );
        self.tables += 1;
        let process = Path::new("/proc").join(task.0.to_string());
        self.effort.add(&process, began.elapsed());
        match read {
            // The kernel stops before a cgroup mount whose path is too long (`cgroup_show_path`). A user with a cgroup
            // namespace can create one, after the mounts inherited from others. So this hides only the user's own
            // mounts.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::RANGE) => {
                log::warn!(
                    "the kernel tells only the first mounts of process {}: {error}",
                    task.0
                );
                Ok(ControlFlow::Continue(()))
            }
            read => read,
        }
    }

    fn too_many(&self) -> Error {
        Error::new(
            ErrorKind::Storage,
            format!(
                "cannot tell whether the volume is mounted: {} mounts in {} mount tables were looked through in {} s, and there are more; {}: end what made them, or wait until it has ended",
                self.mounts,
                self.tables,
                self.time.as_secs(),
                self.effort,
            ),
        )
    }
}

fn directory((process, thread): Task) -> PathBuf {
    PathBuf::from(format!("/proc/{process}/task/{thread}"))
}

/// Returns the id of the mount that a thread's root is on. Does not access its file system.
fn mount_of_root(task: Task) -> io::Result<u64> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    id_of(&openat(
        CWD,
        directory(task).join("root"),
        flags,
        Mode::empty(),
    )?)
}

fn threads(process: u32) -> io::Result<ReadDir> {
    fs::read_dir(format!("/proc/{process}/task"))
}

fn in_time(end: Instant) -> io::Result<()> {
    match Instant::now() < end {
        true => Ok(()),
        false => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Whether a thread has ended, or is a zombie: errors of `mounts_open_common` (fs/proc_namespace.c) and of lookups in
/// /proc.
fn has_ended(error: &io::Error) -> bool {
    let ended = [Errno::NOENT, Errno::SRCH, Errno::INVAL];
    Errno::from_io_error(error).is_some_and(|error| ended.contains(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_among_them() {
        let here = crate::mountinfo::read().unwrap();
        let known = |line: &Line<'_>| match here.iter().any(|mount| mount.id == line.id) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        assert!(find_anywhere(known).unwrap());
        assert!(!find_anywhere(|_| ControlFlow::Continue(())).unwrap());
    }

    #[test]
    fn a_search_that_takes_too_long_says_so_and_finds_nothing_out() {
        let search = Search::within(Duration::ZERO, |_| ControlFlow::Continue(()));
        let error = search.run().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Storage);
        assert!(error.to_string().contains("cannot tell"), "{error}");
    }

    #[test]
    fn a_thread_that_has_ended_is_told_from_one_that_is_not_understood() {
        assert!(has_ended(&threads(4_194_305).unwrap_err()));
        assert!(!has_ended(&io::Error::from(Errno::MFILE)));
        assert!(!has_ended(&io::Error::from(Errno::ACCESS)));
    }
}
