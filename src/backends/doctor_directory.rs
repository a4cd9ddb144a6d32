//! Checks of `doctor` for pools in a directory, shared by backends.

use crate::{
    check::Check,
    processes::{Component, processes},
    size::size,
};
use flexvol_storage::{
    host::{
        Reserve, pool, responsive,
        worker::{self, Access},
    },
    sdk::{Bytes, ErrorKind, Result},
};
use std::{fs, os::unix::fs::MetadataExt, path::Path};

/// Free space of the node's file system in percent below which kubelet evicts pods (`nodefs.available<10%`,
/// pkg/kubelet/apis/config/v1beta1/defaults_linux.go).
const EVICTION_PERCENT: u64 = 10;

/// Checks a pool, or explains why it cannot be opened.
pub fn opened(
    about: String,
    path: &Path,
    check: impl FnOnce(String, pool::Pool) -> Check,
) -> Check {
    let checked = looked_into(about, path, check);
    // What else is checked says nothing about this pool.
    worker::nowhere();
    checked
}

fn looked_into(
    about: String,
    path: &Path,
    check: impl FnOnce(String, pool::Pool) -> Check,
) -> Check {
    let shown = path.display();
    if let Err(error) = worker::at(&shown.to_string(), Some(path), Access::Read) {
        let found = format!("{shown}: {}", error.report());
        return Check::fail(about, found, "look into the kernel's log");
    }
    let look = || drop(pool::Pool::open(path).and_then(|pool| pool.volume_ids()));
    // Without a second process it is unknown whether the pool answers, so try it.
    if !responsive::completes_in_child(Some(path), &look).unwrap_or(true) {
        return Check::fail(
            about,
            format!("{shown} does not answer: its disk or its server is silent"),
            "look into the kernel's log",
        );
    }
    let error = match pool::Pool::open(path) {
        Ok(pool) => return check(about, pool),
        Err(error) => error,
    };
    let remedy = match error.kind() {
        ErrorKind::NotFound => format!(
            "mount the disk that has it, or make it once: mkdir -p {shown} && flexvol pool init {shown}"
        ),
        _ if pool::Pool::is_another(path) => format!(
            "mount the disk that has the pool; where that is gone for good, with its volumes, or this is the node's pool and a record is wrong: flexvol pool init {shown} --replace"
        ),
        _ if is_open_to_others(path) => format!("chown root {shown} && chmod go-w {shown}"),
        // Something inside is missing, open to others, or of another version.
        ErrorKind::Configuration => {
            format!("do what it says; flexvol pool init {shown} completes a pool")
        }
        _ => format!("see that root can read and write {shown}"),
    };
    let found = match pool::Pool::contradicting_records(path) {
        Some(records) => format!(
            "{}; the node's records contradict each other: {records}",
            error.report()
        ),
        None => error.report(),
    };
    Check::fail(about, found, remedy)
}

fn is_open_to_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.uid() != 0 || found.mode() & 0o022 != 0)
}

/// Checks the pool's free space.
pub fn check(
    about: String,
    path: &Path,
    pool: &pool::Pool,
    reserve: Reserve,
    available: Result<Bytes>,
) -> Check {
    let shown = path.display();
    let measured = pool
        .space()
        .and_then(|space| Ok((space, available?, pool.volume_ids()?.len())));
    let (space, available, volumes) = match measured {
        Ok(measured) => measured,
        // The error itself says what to turn on.
        Err(error) if error.kind() == ErrorKind::Configuration => {
            let remedy =
                "see the file system's manual, or use the backend loop, which needs none of it";
            return Check::fail(about, error.report(), remedy);
        }
        Err(error) => {
            return Check::fail(about, error.report(), format!("check the disk of {shown}"));
        }
    };
    let found = format!(
        "{shown}, id {}, volumes: {volumes}, {} of {} free, {} for volumes",
        pool.id(),
        size(space.free),
        size(space.size),
        size(available),
    );
    let evicts = shares_disk_with_kubelet(path);
    match advice(&space, available, reserve, evicts) {
        Some(remedy) => Check::warn(about, found, remedy),
        None => recorded(about, found, path, pool),
    }
}

/// Warns if the node may take another pool for this one while its disk is missing.
fn recorded(about: String, found: String, path: &Path, pool: &pool::Pool) -> Check {
    let shown = path.display();
    if let Some(records) = pool::Pool::contradicting_records(path) {
        return Check::warn(
            about,
            format!("{found}; the node's records of its pool contradict each other: {records}"),
            format!("if it is the node's pool, have all of them say so: flexvol pool init {shown}"),
        );
    }
    if pool.is_forgotten_with_its_disk(path) {
        return Check::warn(
            about,
            format!(
                "{found}; which pool the node has is recorded on the pool's own disk only: while that is missing, a pool below its mount point is taken for it"
            ),
            format!(
                "have /etc/flexvol/directories writable and on a disk, or mount the pool's disk on {shown} and not above /var/lib/flexvol"
            ),
        );
    }
    Check::ok(about, found)
}

fn advice(
    space: &pool::Space,
    available: Bytes,
    reserve: Reserve,
    shares_disk_with_kubelet: bool,
) -> Option<String> {
    let threshold = Bytes(space.size.0 / 100 * EVICTION_PERCENT);
    if shares_disk_with_kubelet && space.free < threshold {
        return Some(format!(
            "less than {EVICTION_PERCENT} % is free on kubelet's own disk, so kubelet evicts pods: free {}, or give the pool a disk of its own",
            size(threshold.saturating_sub(space.free))
        ));
    }
    if available == Bytes(0) {
        return Some(
            "nothing can be provisioned or grown: delete volumes, enlarge the disk, or lower `reserve`"
                .to_owned(),
        );
    }
    let too_little = shares_disk_with_kubelet && reserve.of(space.size) < threshold;
    too_little.then(|| {
        format!(
            "volumes may fill kubelet's own disk to where it evicts pods: set `reserve` to more than {EVICTION_PERCENT}%"
        )
    })
}

fn shares_disk_with_kubelet(pool: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).ok().map(|metadata| metadata.dev());
    let mut roots: Vec<_> = processes()
        .iter()
        .filter(|process| process.component == Component::Kubelet)
        .map(|process| process.identity(&process.root_dir).ok().flatten())
        .map(|root| root.map(|(device, _)| device))
        .collect();
    if roots.is_empty() {
        roots.push(device(Path::new("/var/lib/kubelet")));
    }
    let pool = device(pool);
    roots.iter().any(|root| root.is_some() && *root == pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(free: u64, reserve: Reserve, shared: bool) -> String {
        let space = pool::Space {
            size: Bytes(1000 << 20),
            free: Bytes(free << 20),
        };
        let available = space.free.saturating_sub(reserve.of(space.size));
        advice(&space, available, reserve, shared).unwrap_or_default()
    }

    #[test]
    fn kubelets_threshold_counts_only_on_its_own_disk() {
        let reserve = Reserve::Percent(15);
        assert!(told(90, reserve, true).contains("evicts pods: free 10Mi"));
        assert!(told(90, reserve, false).contains("nothing can be provisioned"));
        assert_eq!(told(500, reserve, true), "");
        assert!(told(500, Reserve::Percent(5), true).contains("set `reserve`"));
        assert_eq!(told(500, Reserve::Percent(5), false), "");
    }
}
