//! Differences of mounts and loop devices between the beginning of a check and its failure. A report shows
//! them beside the failed call.

use crate::{
    journal::record::Made,
    system::{
        block_devices,
        mounts::{self, Mount},
    },
};
use anyhow::Result;
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

/// The mount table of this thread and the loop devices of the machine, at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    mounts: Vec<Mount>,
    /// Device node and backing file.
    loops: Vec<(PathBuf, String)>,
}

/// The directory and the volumes for which changes are reported.
#[derive(Debug)]
pub struct ChangeScope<'a> {
    /// The tester's own directory, with those of all checks in it.
    pub scratch: &'a Path,
    /// The directory of the check.
    pub directory: &'a Path,
    pub made: &'a Made,
}

impl Snapshot {
    pub fn now() -> Result<Self> {
        Ok(Snapshot {
            mounts: mounts::all()?,
            loops: block_devices::loops()?,
        })
    }

    /// Returns one line for each mount and loop device that appeared or disappeared since this snapshot, except
    /// those in the directories of other checks.
    pub fn changes(&self, after: &Snapshot, scope: &ChangeScope) -> Vec<String> {
        let ours =
            |path: &Path| !path.starts_with(scope.scratch) || path.starts_with(scope.directory);
        let mut changes = Vec::new();
        for (sign, mount) in differences(&self.mounts, &after.mounts) {
            if ours(&mount.point) {
                changes.push(format!(
                    "{sign} {} of {} on {} ({}, device {})",
                    mount.filesystem,
                    mount.source,
                    mount.point.display(),
                    mount.options,
                    mount.device
                ));
            }
        }
        for (sign, (device, file)) in differences(&self.loops, &after.loops) {
            if ours(Path::new(file)) {
                let doubt = if scope.is_own(Path::new(file)) {
                    ""
                } else {
                    ", perhaps somebody else's"
                };
                changes.push(format!("{sign} {} on {file}{doubt}", device.display()));
            }
        }
        changes
    }
}

/// Yields items that are only in `before` with a minus, and items that are only in `after` with a plus.
/// Duplicates are counted.
fn differences<'a, T: PartialEq>(
    before: &'a [T],
    after: &'a [T],
) -> impl Iterator<Item = (char, &'a T)> {
    let mut gone: Vec<_> = before.iter().collect();
    let mut new = Vec::new();
    for one in after {
        match gone.iter().position(|other| *other == one) {
            Some(place) => drop(gone.remove(place)),
            None => new.push(one),
        }
    }
    let gone = gone.into_iter().map(|one| ('-', one));
    gone.chain(new.into_iter().map(|one| ('+', one)))
}

impl ChangeScope<'_> {
    /// Whether the path contains the name, or the value of an option, of one of the check's volumes.
    fn is_own(&self, file: &Path) -> bool {
        let named = |word: &str| {
            let part = |name: &OsStr| name.to_str() == Some(word);
            file == Path::new(word) || file.iter().any(part)
        };
        file.starts_with(self.directory)
            || self.made.volumes.iter().any(|(name, traces)| {
                let mut values = traces.options.iter().flat_map(|options| options.values());
                named(name) || values.any(|value| named(value))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::record::Traces;

    fn mount(point: &str) -> Mount {
        Mount {
            device: "7:1".to_owned(),
            root: "/".into(),
            point: point.into(),
            options: "rw".to_owned(),
            filesystem: "xfs".to_owned(),
            source: "/dev/loop1".to_owned(),
        }
    }

    #[test]
    fn changes_are_told_but_for_those_of_other_checks() {
        let before = Snapshot {
            mounts: vec![mount("/"), mount("/s/check/a")],
            loops: vec![("/dev/loop1".into(), "/pool/handle".to_owned())],
        };
        let after = Snapshot {
            mounts: vec![mount("/"), mount("/"), mount("/s/other/a")],
            loops: vec![
                ("/dev/loop2".into(), "/s/other/image".to_owned()),
                ("/dev/loop3".into(), "/somebody".to_owned()),
            ],
        };
        let options = [("handle".to_owned(), "handle".to_owned())].into();
        let traces = Traces {
            options: Some(options),
            ..Traces::default()
        };
        let made = Made {
            volumes: [("name".to_owned(), traces)].into(),
            ..Made::default()
        };
        let scope = ChangeScope {
            scratch: Path::new("/s"),
            directory: Path::new("/s/check"),
            made: &made,
        };
        assert_eq!(
            before.changes(&after, &scope),
            [
                "- xfs of /dev/loop1 on /s/check/a (rw, device 7:1)",
                "+ xfs of /dev/loop1 on / (rw, device 7:1)",
                "- /dev/loop1 on /pool/handle",
                "+ /dev/loop3 on /somebody, perhaps somebody else's",
            ]
        );
    }
}
