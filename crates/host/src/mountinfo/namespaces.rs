//! The mount tables of all processes.
//!
//! Everybody who has a user namespace has as many mounts and processes as he likes, so nothing here
//! grows with them: a table passes line by line, and whoever asks keeps what he asked for.

use super::{Line, lines};
use flexvol_sdk::{Error, ErrorKind, Result};
use rustix::io::Errno;
use std::{
    collections::{HashSet, hash_map::RandomState},
    fs::{self, File, ReadDir},
    hash::BuildHasher,
    io,
    ops::ControlFlow,
    path::Path,
    time::{Duration, Instant},
};

/// A node of 500 containers has fifty thousand mounts, which take a second.
const TIME: Duration = Duration::from_secs(20);

/// Shows every mount of every mount namespace that a thread seen in `/proc` lives in, once for each
/// root from which it is seen, until `wanted` has found what it looked for; true where it has.
///
/// # Errors
/// When there is a thread whose mounts cannot be read, or there are too many mounts, so that any may
/// be hidden. A thread that ends while it is asked is passed over.
pub fn find_anywhere(wanted: impl FnMut(&Line<'_>) -> ControlFlow<()>) -> Result<bool> {
    Search::within(TIME).run(wanted)
}

struct Search {
    time: Duration,
    end: Instant,
    /// The pairs of mount namespace and root that were looked at, hashed under a key of this process:
    /// a root's path is as long as somebody likes.
    seen: HashSet<u64>,
    hasher: RandomState,
    processes: u64,
    mounts: u64,
    /// The process with the most mounts, and how many.
    largest: (String, u64),
}

impl Search {
    fn within(time: Duration) -> Self {
        Search {
            time,
            end: Instant::now() + time,
            seen: HashSet::new(),
            hasher: RandomState::new(),
            processes: 0,
            mounts: 0,
            largest: (String::new(), 0),
        }
    }

    fn run(mut self, mut wanted: impl FnMut(&Line<'_>) -> ControlFlow<()>) -> Result<bool> {
        let failed = |error: io::Error| Error::system("list processes", error);
        for entry in fs::read_dir("/proc").map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let Some(process) = name.to_str().filter(|it| it.as_bytes()[0].is_ascii_digit()) else {
                continue;
            };
            let before = self.mounts;
            // A thread may leave the namespace and the root of the first one, and live longer.
            let found = match threads(process) {
                Ok(threads) => self.any_of(threads, &mut wanted),
                Err(error) => Err(error),
            };
            let own = self.mounts - before;
            self.processes += 1;
            if own > self.largest.1 {
                self.largest = (process.to_owned(), own);
            }
            match found {
                Ok(ControlFlow::Break(())) => return Ok(true),
                Ok(ControlFlow::Continue(())) => {}
                Err(error) if has_ended(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    return Err(self.too_many());
                }
                Err(error) => {
                    return Err(Error::system("read the mount table of a process", error)
                        .because(format!("process {process}")));
                }
            }
        }
        Ok(false)
    }

    fn any_of(
        &mut self,
        threads: ReadDir,
        wanted: &mut impl FnMut(&Line<'_>) -> ControlFlow<()>,
    ) -> io::Result<ControlFlow<()>> {
        for thread in threads {
            // Others may live where an ended one lived.
            match self.thread(&thread?.path(), wanted) {
                Err(error) if has_ended(&error) => {}
                Ok(ControlFlow::Continue(())) => {}
                found => return found,
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn thread(
        &mut self,
        thread: &Path,
        wanted: &mut impl FnMut(&Line<'_>) -> ControlFlow<()>,
    ) -> io::Result<ControlFlow<()>> {
        in_time(self.end)?;
        // Its table may be read also where these are not told.
        let namespace = fs::read_link(thread.join("ns/mnt")).ok();
        let root = fs::read_link(thread.join("root")).ok();
        let place = namespace.zip(root).map(|(namespace, root)| {
            let hash = |root: &Path| self.hasher.hash_one((&namespace, root));
            (hash(Path::new("/")), hash(&root))
        });
        // A thread sees only what is below its root, and from the topmost one that is everything.
        if let Some((whole, own)) = place
            && (self.seen.contains(&whole) || self.seen.contains(&own))
        {
            return Ok(ControlFlow::Continue(()));
        }
        let table = File::open(thread.join("mountinfo"))?;
        let (end, mounts) = (self.end, &mut self.mounts);
        let read = lines::each(
            table,
            || in_time(end),
            |line| match Line::read(line) {
                Some(line) => {
                    *mounts += 1;
                    wanted(&line)
                }
                None => ControlFlow::Continue(()),
            },
        );
        let found = match read {
            // The kernel stops before a mount of a control group whose path is too long for it
            // (`cgroup_show_path`). Everybody who has a namespace of control groups can make one, below
            // what was mounted before; he hides his own uses from us, and nobody else's.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::RANGE) => {
                log::warn!(
                    "the kernel tells only the first mounts of {}: {error}",
                    thread.display()
                );
                ControlFlow::Continue(())
            }
            read => read?,
        };
        self.seen.extend(place.map(|(_, own)| own));
        Ok(found)
    }

    fn too_many(&self) -> Error {
        let (process, most) = &self.largest;
        Error::new(
            ErrorKind::Storage,
            format!(
                "cannot tell whether the volume is mounted: {} mounts of {} processes were looked through in {} s, and there are more; process {process} has the most of them, {most}: end what made them, or wait until it has ended",
                self.mounts,
                self.processes,
                self.time.as_secs(),
            ),
        )
    }
}

fn threads(process: &str) -> io::Result<ReadDir> {
    fs::read_dir(Path::new("/proc").join(process).join("task"))
}

fn in_time(end: Instant) -> io::Result<()> {
    match Instant::now() < end {
        true => Ok(()),
        false => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// What `mounts_open_common` (fs/proc_namespace.c) and the lookup in /proc say of a thread that
/// is no more, or of which only the number is left.
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
        let search = Search::within(Duration::ZERO);
        let error = search.run(|_| ControlFlow::Continue(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Storage);
        assert!(error.to_string().contains("cannot tell"), "{error}");
    }

    #[test]
    fn a_thread_that_has_ended_is_told_from_one_that_is_not_understood() {
        assert!(has_ended(&threads("4194305").unwrap_err()));
        assert!(!has_ended(&io::Error::from(Errno::MFILE)));
        assert!(!has_ended(&io::Error::from(Errno::ACCESS)));
    }
}
