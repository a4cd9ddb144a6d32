//! Limits on the size of directories: project quotas on XFS and ext4, quota groups of subvolumes on Btrfs.
//!
//! A record of the limit is kept with the directory around the limited one, where no pod sees it. A pod can change the
//! project of its own files, and turning the quotas of a Btrfs off and on again loses all limits; the record says what
//! the limit should be.

mod projects;
mod removal;

pub use projects::Projects;
pub(crate) use removal::remove;

use crate::{
    fs::{
        attribute, expect_writable,
        subvolume::{self, BTRFS},
    },
    sys::{self, btrfs::Accounting},
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Result};
use projects::ProjectQuotas;
use rustix::{
    fs::{Mode, fstatfs},
    io::Errno,
};
use std::{fmt, fs::File, io, num::NonZeroU32, os::fd::AsFd};

/// Extended attribute that keeps the record.
pub(crate) const RECORD: &str = "trusted.flexvol.limit";

/// Magic numbers of file systems in `statfs` (linux/magic.h).
const XFS: i64 = 0x5846_5342;
const EXT4: i64 = 0xef53;

/// Record of a directory's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The project that everything in it belongs to; `None` for a subvolume, which has a quota group of its own.
    pub project: Option<NonZeroU32>,
    /// The last limit set, or the one that was about to be set at an interruption.
    pub size: Bytes,
}

/// Version, the first word of a record; records with another one were written by a newer driver.
const VERSION: &str = "1";

impl Record {
    /// Reads the record that is kept with the directory around a limited one.
    pub(crate) fn of(around: &File) -> Result<Option<Record>> {
        let Some(text) = attribute::read(around, RECORD)? else {
            return Ok(None);
        };
        Record::parse(&text).map(Some)
    }

    /// Parses `1 PROJECT SIZE`: the size in bytes, and project zero for none.
    fn parse(text: &str) -> Result<Record> {
        let wrong = |what: &'static str| Error::new(ErrorKind::Storage, what).because(text);
        let words: Vec<_> = text.split(' ').collect();
        let damaged = || wrong("the record of the volume's limit is damaged");
        match words[..] {
            [VERSION, project, size] => Ok(Record {
                project: NonZeroU32::new(project.parse().map_err(|_| damaged())?),
                size: Bytes(size.parse().map_err(|_| damaged())?),
            }),
            [version, _, _, ..] if version.parse::<u32>().is_ok() => {
                Err(wrong("the volume's limit was set by a newer flexvol"))
            }
            _ => Err(damaged()),
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let project = self.project.map_or(0, NonZeroU32::get);
        write!(f, "{VERSION} {project} {}", self.size.0)
    }
}

/// Limit and usage of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The limit in force; zero is none.
    pub limit: Bytes,
    /// Bytes that only this directory has. On Btrfs without blocks shared with snapshots, as of the last commit, at
    /// most half a minute ago. Project quotas do not tell what is shared.
    pub own: Bytes,
}

/// Mechanism by which a file system limits directories.
#[derive(Debug)]
pub(crate) enum Limiter {
    Projects(ProjectQuotas),
    /// The directory that contains the subvolumes. Within a full subvolume nothing can be started, not even its growth.
    Subvolumes(File),
}

impl Limiter {
    /// Determines how directories in `parent` are limited.
    ///
    /// # Errors
    /// [`ErrorKind::Configuration`] where they are not; the message says what to turn on.
    pub(crate) fn of(parent: &File) -> Result<Limiter> {
        let failed =
            |error: Errno| Error::system("ask the pool's file system for its quotas", error);
        let missing = |what: &'static str| Err(Error::new(ErrorKind::Configuration, what));
        let kind = fstatfs(parent).map_err(failed)?.f_type;
        if kind == BTRFS {
            return match sys::btrfs::accounting(parent.as_fd()) {
                Ok(Accounting::Off) => missing(
                    "the pool's file system limits no directories: turn quotas on with \"btrfs quota enable\"",
                ),
                Ok(_) => {
                    let parent = parent.try_clone();
                    let failed = |error| Error::system("open the pool", error);
                    Ok(Limiter::Subvolumes(parent.map_err(failed)?))
                }
                Err(error) => Err(failed(error)),
            };
        }
        let quotas = ProjectQuotas::of(parent, kind == EXT4)?;
        match (quotas.enforced().map_err(failed)?, kind) {
            (true, _) => {}
            (false, XFS) => {
                return missing(
                    "the pool's file system limits no directories: unmount it, and mount it with the option prjquota (a root file system: rootflags=prjquota on the kernel's command line)",
                );
            }
            (false, EXT4) => {
                // A file system that was remounted read-only after an error enforces nothing.
                expect_writable(parent.as_fd())?;
                return missing(
                    "the pool's file system limits no directories: unmount it, run \"tune2fs -O project,quota -Q prjquota\" on its device, and mount it with the option prjquota",
                );
            }
            (false, _) => {
                return missing(
                    "the pool's file system limits no directories; use xfs, ext4 or btrfs",
                );
            }
        }
        // A directory that passes on a project of its own cannot take directories of other projects.
        match sys::quota::project(parent.as_fd()).map_err(failed)? {
            (_, false) => Ok(Limiter::Projects(quotas)),
            (project, true) => Err(Error::new(
                ErrorKind::Configuration,
                "the pool lies in a project of somebody else's, so its directories cannot have their own; use a directory without (lsattr -pd shows it)",
            )
            .because(format!("project {project}"))),
        }
    }

    /// Checks that limits are enforced now. After a Btrfs has marked its quotas inconsistent, it counts and limits
    /// nothing (fs/btrfs/qgroup.c, `qgroup_mark_inconsistent`).
    ///
    /// # Errors
    /// [`ErrorKind::Configuration`]; the message says what to do.
    pub(crate) fn expect_counted(&self) -> Result<()> {
        let Limiter::Subvolumes(parent) = self else {
            return Ok(());
        };
        match sys::btrfs::accounting(parent.as_fd()) {
            Ok(Accounting::Lost) => Err(Error::new(
                ErrorKind::Configuration,
                "the pool's file system lost count of its quotas, so limits do not hold: run \"btrfs quota rescan -w\"",
            )),
            Ok(_) => Ok(()),
            Err(error) => Err(Error::system(
                "ask the pool's file system for its quotas",
                error,
            )),
        }
    }

    /// Creates a directory that can be limited.
    pub(crate) fn make(&self, parent: &File, name: &str) -> Result<()> {
        let made = match self {
            Limiter::Projects(_) => rustix::fs::mkdirat(parent, name, Mode::RWXU),
            Limiter::Subvolumes(_) => sys::btrfs::create(parent.as_fd(), name.as_bytes()),
        };
        made.map_err(|error| Error::system("make the volume's directory", error))
    }

    /// Picks a project for a new directory, none of `taken`; `wish` spreads the choices. `None` for a subvolume.
    pub(crate) fn free_project(
        &self,
        projects: &Projects,
        taken: &dyn Fn(u32) -> bool,
        wish: u32,
    ) -> Result<Option<NonZeroU32>> {
        match self {
            Limiter::Projects(quotas) => quotas.free(projects, taken, wish).map(Some),
            Limiter::Subvolumes(_) => Ok(None),
        }
    }

    /// Returns what the directory was created to be limited by. Refuses a copied directory: limiting it would limit
    /// what lies around it.
    fn target(&self, directory: &File, record: &Record) -> Result<Target<'_>> {
        let copied = |what: &'static str| Err(Error::new(ErrorKind::Conflict, what));
        let failed =
            |error: io::Error| Error::system("ask what limits the volume's directory", error);
        match (self, record.project) {
            (Limiter::Projects(quotas), Some(project)) => Ok(Target::Project(quotas, project)),
            (Limiter::Projects(_), None) => copied(
                "the volume was copied here from a Btrfs and has no project; provision a new one, and copy the files into that",
            ),
            (Limiter::Subvolumes(parent), None)
                if subvolume::is_one(directory).map_err(failed)? =>
            {
                let id = sys::btrfs::subvolume(directory.as_fd());
                let id = id.map_err(|error| failed(error.into()))?;
                Ok(Target::Subvolume(parent, id))
            }
            (Limiter::Subvolumes(_), _) => copied(
                "the volume was copied here and is no subvolume of its own; provision a new one, and copy the files into that",
            ),
        }
    }

    /// Whether new files in the directory count towards its limit; its owner may have changed that.
    pub(crate) fn is_counted(&self, directory: &File, record: &Record) -> Result<bool> {
        let failed = |error: Errno| Error::system("ask for the volume's project", error);
        match self.target(directory, record)? {
            Target::Project(_, project) => {
                let found = sys::quota::project(directory.as_fd()).map_err(failed)?;
                Ok(found == (project.get(), true))
            }
            Target::Subvolume(..) => Ok(true),
        }
    }

    /// Makes new files in the directory count towards its limit, and a subvolume writable. Returns whether a change was
    /// needed.
    pub(crate) fn ensure_counted(&self, directory: &File, record: &Record) -> Result<bool> {
        let failed = |error: Errno| Error::system("give the volume to its project", error);
        let joined = match self.target(directory, record)? {
            Target::Project(..) if self.is_counted(directory, record)? => Ok(false),
            Target::Project(_, project) => {
                sys::quota::set_project(directory.as_fd(), project.get(), true).map(|()| true)
            }
            Target::Subvolume(..) => sys::btrfs::make_writable(directory.as_fd()),
        };
        joined.map_err(failed)
    }

    pub(crate) fn usage(&self, directory: &File, record: &Record) -> Result<Usage> {
        self.target(directory, record)?.usage()
    }

    /// Returns the usage of a directory whose record cannot be read, and its project.
    pub(crate) fn usage_without_record(
        &self,
        directory: &File,
    ) -> Result<(Usage, Option<NonZeroU32>)> {
        let failed = |error: Errno| Error::system("ask for the volume's project", error);
        let project = match self {
            Limiter::Projects(_) => {
                NonZeroU32::new(sys::quota::project(directory.as_fd()).map_err(failed)?.0)
            }
            Limiter::Subvolumes(_) => None,
        };
        let record = Record {
            project,
            size: Bytes(0),
        };
        Ok((self.usage(directory, &record)?, project))
    }

    /// Limits the directory to `size`, durably.
    pub(crate) fn set(&self, directory: &File, record: &Record, size: Bytes) -> Result<()> {
        let set = match self.target(directory, record)? {
            Target::Project(quotas, project) => quotas.set(project.get(), size.0),
            Target::Subvolume(parent, id) => sys::btrfs::limit(parent.as_fd(), id, Some(size.0))
                .and_then(|()| sys::btrfs::commit(parent.as_fd())),
        };
        set.map_err(|error| Error::system("set the volume's quota", error))
    }
}

/// What limits one directory.
enum Target<'a> {
    Project(&'a ProjectQuotas, NonZeroU32),
    /// The directory that contains the subvolume, and the subvolume's id.
    Subvolume(&'a File, u64),
}

impl Target<'_> {
    fn usage(&self) -> Result<Usage> {
        let usage = match self {
            Target::Project(quotas, project) => {
                quotas.usage(project.get()).map(|(limit, used)| Usage {
                    limit: Bytes(limit),
                    own: Bytes(used),
                })
            }
            Target::Subvolume(parent, id) => {
                sys::btrfs::usage(parent.as_fd(), *id).map(|usage| Usage {
                    limit: Bytes(usage.limit.unwrap_or(0)),
                    own: Bytes(usage.exclusive),
                })
            }
        };
        usage.map_err(|error| Error::system("read the volume's quota", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for project in [None, NonZeroU32::new(u32::MAX)] {
            let record = Record {
                project,
                size: Bytes(u64::MAX),
            };
            assert_eq!(Record::parse(&record.to_string()).unwrap(), record);
        }
        for wrong in [
            "",
            "1",
            "1 2",
            "1 x 1",
            "1 -1 1",
            "1 1 1Gi",
            "1 4294967296 1",
            "x 1 2",
        ] {
            let error = Record::parse(wrong).unwrap_err();
            assert!(error.to_string().contains("damaged"), "{wrong:?}: {error}");
        }
        for newer in ["2 1 1", "1 1 1 more"] {
            let error = Record::parse(newer).unwrap_err();
            assert!(error.to_string().contains("newer"), "{newer:?}: {error}");
        }
    }
}
