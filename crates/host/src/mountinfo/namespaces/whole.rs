//! The table of a mount namespace seen from its own root, independent of its processes' roots.

use crate::deadline::Pause;
use nix::sched::{CloneFlags, setns, unshare};
use rustix::{
    fs::{Mode, OFlags, openat},
    io::Errno,
};
use std::{fs::File, io, os::fd::AsFd, path::Path, thread, time::Instant};

/// Opens the table. A process that enters a namespace gets its topmost root (`mntns_install`, fs/namespace.c), from
/// which every mount on a visible one is visible.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] at `until`: the root's file system may wait for its server. A permission error without
/// the privilege to enter other namespaces.
pub(super) fn table(namespace: &Path, until: Instant) -> io::Result<File> {
    let namespace = File::open(namespace)?;
    let processes = File::open("/proc")?;
    let entered = move || -> io::Result<File> {
        // Threads share a root by default, and a thread that shares its root cannot enter a mount namespace.
        unshare(CloneFlags::CLONE_FS)?;
        setns(namespace.as_fd(), CloneFlags::CLONE_NEWNS)?;
        // Relative to the descriptor of /proc, where processes in that namespace cannot have mounted anything.
        let own = "thread-self/mountinfo";
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(openat(processes, own, flags, Mode::empty())?.into())
    };
    let thread = thread::Builder::new()
        .name("namespace".to_owned())
        .spawn(entered)?;
    let mut pause = Pause::default();
    while !thread.is_finished() {
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        pause.sleep();
    }
    thread.join().unwrap_or(Err(Errno::IO.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mountinfo::{self, Mount};
    use std::{io::Read, time::Duration};

    #[test]
    fn whoever_may_enter_a_namespace_sees_all_of_it() {
        let until = Instant::now() + Duration::from_secs(5);
        let mut text = Vec::new();
        match table(Path::new("/proc/self/ns/mnt"), until) {
            Ok(mut table) => table.read_to_end(&mut text).unwrap(),
            Err(error) => {
                assert!(!rustix::process::geteuid().is_root(), "{error}");
                return;
            }
        };
        let ids = |mounts: Vec<Mount>| mounts.into_iter().map(|mount| mount.id);
        let whole: Vec<_> = ids(mountinfo::parse(&text)).collect();
        assert!(ids(mountinfo::read().unwrap()).all(|id| whole.contains(&id)));
    }
}
