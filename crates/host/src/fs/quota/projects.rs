//! Project quotas of XFS and ext4.

use crate::{
    block::{device_node, number::DeviceNumber},
    sys::quota::{self, FilesystemRef},
};
use flexvol_sdk::{Error, ErrorKind, Result};
use rustix::{
    fs::{OFlags, fstat, fstatvfs},
    io::Errno,
};
use std::{
    cell::OnceCell,
    ffi::CString,
    fmt,
    fs::File,
    num::NonZeroU32,
    os::{fd::AsFd, unix::ffi::OsStrExt},
    str::FromStr,
};

/// Bytes of a limit for each inode that it allows, the default of mkfs.ext4 (`inode_ratio` in mke2fs.conf).
const BYTES_PER_INODE: u64 = 16 << 10;

/// Fewest inodes of a limit: a directory, and some files.
const FEWEST_INODES: u64 = 64;

/// Inclusive range of projects that no other user of the file system takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Projects {
    first: u32,
    last: u32,
}

impl Default for Projects {
    /// Returns a range far from the numbers that people choose, and from Kubernetes' own projects for emptyDir, which
    /// begin at 1048577 (pkg/volume/util/fsquota/common/quota_common_linux_impl.go).
    fn default() -> Self {
        Projects {
            first: 1_500_000_000,
            last: 1_999_999_999,
        }
    }
}

impl FromStr for Projects {
    type Err = Error;

    /// Parses `FIRST-LAST`, two numbers.
    fn from_str(text: &str) -> Result<Self> {
        let numbers = text
            .split_once('-')
            .and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
        match numbers {
            // The highest number is not a valid project (linux/projid.h, `projid_valid`).
            Some((first, last)) if 0 < first && first <= last && last < u32::MAX => {
                Ok(Projects { first, last })
            }
            _ => Err(Error::new(
                ErrorKind::Configuration,
                format!(
                    "{text:?} is no range of projects, as {} is",
                    Projects::default()
                ),
            )),
        }
    }
}

impl fmt::Display for Projects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl Projects {
    /// Whether the range contains a project.
    #[must_use]
    pub fn contains(&self, project: u32) -> bool {
        (self.first..=self.last).contains(&project)
    }

    /// Iterates over all projects of the range, starting at one that depends on `wish`.
    fn from(self, wish: u32) -> impl Iterator<Item = u32> {
        let count = u64::from(self.last - self.first) + 1;
        let start = u64::from(wish) % count;
        (0..count).filter_map(move |step| {
            u32::try_from(u64::from(self.first) + (start + step) % count).ok()
        })
    }
}

/// Project quotas of one file system.
#[derive(Debug)]
pub(crate) struct ProjectQuotas {
    file: File,
    /// The number of inodes is fixed by mkfs, as on ext4.
    fixed_inodes: bool,
    device: OnceCell<CString>,
}

impl ProjectQuotas {
    /// Returns the quotas of the file system that a file or directory lies on.
    pub(super) fn of(file: &File, fixed_inodes: bool) -> Result<Self> {
        let file = file.try_clone();
        Ok(ProjectQuotas {
            file: file.map_err(|error| Error::system("open the pool", error))?,
            fixed_inodes,
            device: OnceCell::new(),
        })
    }

    /// Queries by file descriptor; on kernels without that call, by device.
    fn ask<T>(
        &self,
        question: impl Fn(FilesystemRef<'_>) -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        match question(FilesystemRef::Holding(self.file.as_fd())) {
            // Before Linux 5.14, or on a file system without quotas.
            Err(Errno::NOSYS) => question(FilesystemRef::Device(self.device()?)),
            answer => answer,
        }
    }

    fn device(&self) -> rustix::io::Result<&CString> {
        if let Some(path) = self.device.get() {
            return Ok(path);
        }
        let number = DeviceNumber::from_raw(fstat(&self.file)?.st_dev);
        let found = device_node::open(number, OFlags::PATH);
        // Without a block device there are no quotas either.
        let (_, path) = found.map_err(|_| Errno::NOSYS)?;
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
        Ok(self.device.get_or_init(|| path))
    }

    pub(super) fn enforced(&self) -> rustix::io::Result<bool> {
        match self.ask(quota::enforced) {
            // No quotas are turned on, or the file system cannot have any.
            Err(Errno::NOSYS | Errno::NOTBLK) => Ok(false),
            answer => answer,
        }
    }

    /// Returns limit and usage in bytes.
    pub(super) fn usage(&self, project: u32) -> rustix::io::Result<(u64, u64)> {
        let quota = self.ask(|place| quota::get(place, project))?;
        Ok((quota.space, quota.space_used))
    }

    /// Limits bytes and the number of inodes, which on ext4 all directories share. Never fewer inodes than are in use.
    pub(super) fn set(&self, project: u32, space: u64) -> rustix::io::Result<()> {
        let has = self.ask(|place| quota::get(place, project))?;
        let inodes = self.inodes(space)?.max(has.inodes);
        self.ask(|place| quota::set(place, project, space, inodes))
    }

    pub(super) fn forget(&self, project: u32) -> rustix::io::Result<()> {
        self.ask(|place| quota::set(place, project, 0, 0))
    }

    fn inodes(&self, space: u64) -> rustix::io::Result<u64> {
        let mut inodes = space / BYTES_PER_INODE;
        if self.fixed_inodes {
            let stat = fstatvfs(&self.file)?;
            let all = u128::from(stat.f_blocks) * u128::from(stat.f_frsize);
            let share = u128::from(space) * u128::from(stat.f_files) / all.max(1);
            inodes = inodes.min(u64::try_from(share).unwrap_or(u64::MAX));
        }
        Ok(inodes.max(FEWEST_INODES))
    }

    /// Finds a project without usage and limits, so that neither a volume that is being removed nor files of other
    /// users belong to it.
    pub(super) fn free(
        &self,
        projects: &Projects,
        taken: &dyn Fn(u32) -> bool,
        wish: u32,
    ) -> Result<NonZeroU32> {
        for project in projects.from(wish).filter(|project| !taken(*project)) {
            let quota = self
                .ask(|place| quota::get(place, project))
                .map_err(|error| Error::system("look for a free project", error))?;
            if quota == quota::Quota::default()
                && let Some(project) = NonZeroU32::new(project)
            {
                return Ok(project);
            }
        }
        Err(Error::new(
            ErrorKind::Exhausted,
            format!("all projects from {projects} are in use; configure more"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_projects_is_gone_through_once_from_anywhere() {
        let projects: Projects = "5-9".parse().unwrap();
        let from = |wish| projects.from(wish).collect::<Vec<_>>();
        assert_eq!(from(0), [5, 6, 7, 8, 9]);
        assert_eq!(from(13), [8, 9, 5, 6, 7]);
        let all: Projects = "1-4294967294".parse().unwrap();
        assert_eq!(all.from(u32::MAX).next(), Some(2));
        assert!(projects.contains(9) && !projects.contains(10));
    }

    #[test]
    fn a_range_of_projects_is_two_numbers_in_order() {
        let default = Projects::default();
        assert_eq!(default.to_string().parse::<Projects>().unwrap(), default);
        for wrong in [
            "",
            "7",
            "9-5",
            "0-5",
            "5-4294967295",
            "a-b",
            "1-2-3",
            "-1-5",
        ] {
            assert!(wrong.parse::<Projects>().is_err(), "{wrong:?}");
        }
    }
}
