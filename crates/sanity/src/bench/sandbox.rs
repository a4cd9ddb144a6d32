//! A sandbox for calls with hostile values: a mount namespace of its own, in which most of the machine is
//! read-only, and a decoy file for a driver that follows such a value.

use crate::{
    bench::{Bench, changes::Snapshot},
    callout::call::Call,
    system::{self, mount_namespace, mounts},
    verdict::{Verdict, wrong},
};
use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Directories that stay writable, because programs keep temporary data there. In addition, the directories
/// in the setting `writes` and those of the driver's volumes stay writable.
const WRITABLE: [&str; 8] = [
    "/dev", "/proc", "/run", "/sys", "/tmp", "/var/log", "/var/run", "/var/tmp",
];

/// Runs the work in the sandbox. Without root there is none, but a driver then cannot do harm that needs root.
pub fn sandboxed(bench: &Bench, work: impl FnOnce() -> Verdict + Send) -> Verdict {
    if !system::is_root() {
        return work();
    }
    with_changed_mounts(bench, || protect(&writable(bench)), work)
}

/// Runs the work in a thread with a mount namespace of its own, after `change` has changed its mounts.
pub fn with_changed_mounts(
    bench: &Bench,
    change: impl FnOnce() -> Result<()> + Send,
    work: impl FnOnce() -> Verdict + Send,
) -> Verdict {
    mount_namespace::in_own_namespace(|| {
        change()?;
        let before = Snapshot::now()?;
        let verdict = work();
        if verdict.is_err() {
            bench.record_changes_since(&before)?;
        }
        verdict
    })?
}

fn writable(bench: &Bench) -> Vec<PathBuf> {
    let run = bench.run;
    let content = run.config.volume.content.as_deref();
    // The part of the path that all volumes share.
    let content = content.and_then(|text| text.split('{').next());
    let content = content.and_then(|text| text.rsplit_once('/'));
    WRITABLE
        .map(PathBuf::from)
        .into_iter()
        .chain([run.scratch.clone()])
        .chain(run.config.writes.iter().cloned())
        .chain(content.map(|(directory, _)| directory.into()))
        .filter(|path| path != Path::new("") && path != Path::new("/"))
        .collect()
}

/// Makes all mounts read-only except these directories, each of which becomes a mount point. One inside another
/// does not: the other keeps it writable, and a driver may refuse a mount inside its directory.
fn protect(writable: &[PathBuf]) -> Result<()> {
    let kept = outermost(
        writable
            .iter()
            .filter_map(|path| fs::canonicalize(path).ok()),
    );
    for path in &kept {
        if mounts::at(path)?.is_empty() && path.is_dir() {
            let all = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(Some(path), path, None::<&str>, all, None::<&str>)
                .with_context(|| format!("keep {} writable", path.display()))?;
        }
    }
    for found in mounts::all()? {
        if kept.iter().any(|path| found.point.starts_with(path)) {
            continue;
        }
        let mut flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
        for option in found.options.split(',') {
            flags |= match option {
                "nosuid" => MsFlags::MS_NOSUID,
                "nodev" => MsFlags::MS_NODEV,
                "noexec" => MsFlags::MS_NOEXEC,
                "noatime" => MsFlags::MS_NOATIME,
                "nodiratime" => MsFlags::MS_NODIRATIME,
                "relatime" => MsFlags::MS_RELATIME,
                _ => MsFlags::empty(),
            };
        }
        mount(
            None::<&str>,
            &found.point,
            None::<&str>,
            flags,
            None::<&str>,
        )
        .with_context(|| format!("make {} read-only", found.point.display()))?;
    }
    Ok(())
}

/// The paths that are below none of the others.
fn outermost(paths: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    let mut sorted: Vec<_> = paths.collect();
    sorted.sort();
    sorted.dedup_by(|later, earlier| later.starts_with(earlier));
    sorted
}

/// A directory with a file that no driver has a reason to touch.
#[derive(Debug)]
pub struct Decoy {
    pub directory: PathBuf,
    pub file: PathBuf,
    before: DecoyState,
}

/// Owner, group and mode of the directory, the names in it, and the file's content.
type DecoyState = (u32, u32, u32, Vec<std::ffi::OsString>, Vec<u8>);

impl Decoy {
    pub fn new(bench: &Bench) -> Result<Self> {
        let directory = bench.dir.join("decoy");
        system::make_directory(&directory).context("make a decoy")?;
        let file = directory.join("file");
        fs::write(&file, "nobody's business\n").context("make a decoy")?;
        let before = decoy_state(&directory, &file)?;
        Ok(Decoy {
            directory,
            file,
            before,
        })
    }

    /// Stops the check if the directory or its file changed.
    pub fn expect_untouched(&self, call: &Call) -> Verdict {
        match decoy_state(&self.directory, &self.file) {
            Ok(now) if now == self.before => Ok(()),
            _ => {
                let expected = "a directory that a value leads to stays as it is";
                Err(wrong(call, expected, "it was changed"))
            }
        }
    }
}

/// Directories of the node's own, each with its device and inode.
#[derive(Debug)]
pub struct Forbidden(Vec<(PathBuf, u64, u64)>);

impl Forbidden {
    /// The node's root and /etc, and the decoy.
    pub fn new(decoy: &Decoy) -> Self {
        let directories = [Path::new("/"), Path::new("/etc"), &decoy.directory];
        let found = directories.into_iter().filter_map(|path| {
            let about = fs::metadata(path).ok()?;
            Some((path.to_owned(), about.dev(), about.ino()))
        });
        Forbidden(found.collect())
    }

    /// Stops the check if one of them is mounted on the directory.
    pub fn expect_elsewhere(&self, call: &Call, mounted: &Path) -> Verdict {
        let about = fs::metadata(mounted).context("look at the directory")?;
        let is = |(_, dev, ino): &&(PathBuf, u64, u64)| (*dev, *ino) == (about.dev(), about.ino());
        match self.0.iter().find(is) {
            Some((path, ..)) => {
                let expected = "nothing of the node's own is mounted";
                Err(wrong(call, expected, format!("{} is", path.display())))
            }
            None => Ok(()),
        }
    }
}

fn decoy_state(directory: &Path, file: &Path) -> Result<DecoyState> {
    let about = fs::metadata(directory).context("look at the decoy")?;
    let entries = fs::read_dir(directory).context("list the decoy")?;
    let mut names: Vec<_> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.file_name())
        .collect();
    names.sort();
    let text = fs::read(file).context("read the decoy")?;
    Ok((about.uid(), about.gid(), about.mode(), names, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_has_every_place_that_stays_writable() {
        let manual = include_str!("../../README.md");
        let from = manual.find("can only be read but for").unwrap();
        let list = &manual[from..from + manual[from..].find("what `writes`").unwrap()];
        let listed: Vec<_> = list.split('`').skip(1).step_by(2).collect();
        assert_eq!(listed, WRITABLE);
    }

    #[test]
    fn a_directory_inside_another_becomes_no_mount() {
        let paths = [
            "/srv/pool/volumes",
            "/tmp",
            "/srv/pool",
            "/srv/pool-2",
            "/tmp",
        ];
        let kept = outermost(paths.map(PathBuf::from).into_iter());
        assert_eq!(
            kept,
            ["/srv/pool", "/srv/pool-2", "/tmp"].map(PathBuf::from)
        );
    }
}
