//! Temporarily hidden programs.

use crate::isolation::{arena, is_isolated};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// Programs hidden from this process and its children until this is dropped. Other programs in their directories
/// remain.
///
/// Each directory that has one of them is covered by a mount in memory with links to the other programs.
#[derive(Debug)]
pub struct Hidden {
    /// Mount points of the hidden directories, and the directories that are covered.
    places: Vec<(TempDir, PathBuf)>,
}

impl Hidden {
    /// Hides programs by name, in all directories of the system.
    ///
    /// # Panics
    /// When the process has no mount namespace of its own, or a mount fails.
    #[must_use]
    pub fn tools(names: &[&str]) -> Self {
        assert!(
            is_isolated(),
            "only a mount namespace of its own may be changed"
        );
        let all = [
            "/usr/sbin",
            "/usr/bin",
            "/sbin",
            "/bin",
            "/usr/local/sbin",
            "/usr/local/bin",
        ];
        // /bin may be a link to /usr/bin.
        let directories: BTreeSet<_> = all
            .iter()
            .filter_map(|dir| fs::canonicalize(dir).ok())
            .filter(|dir| {
                names
                    .iter()
                    .any(|name| dir.join(name).symlink_metadata().is_ok())
            })
            .collect();
        let mut hidden = Hidden { places: Vec::new() };
        for directory in directories {
            hidden.cover(&directory, names);
        }
        for name in names {
            let found = all.iter().find(|dir| Path::new(dir).join(name).exists());
            assert_eq!(found, None, "{name} is not hidden");
        }
        hidden
    }

    fn cover(&mut self, directory: &Path, names: &[&str]) {
        let none = None::<&str>;
        let aside = tempfile::tempdir_in(arena()).expect("make a directory");
        mount(Some(directory), aside.path(), none, MsFlags::MS_BIND, none)
            .expect("mount the programs elsewhere");
        let options = Some("mode=0755");
        if let Err(error) = mount(
            Some("tmpfs"),
            directory,
            Some("tmpfs"),
            MsFlags::empty(),
            options,
        ) {
            // Leaves the directory unchanged.
            let _ = umount2(aside.path(), MntFlags::MNT_DETACH);
            panic!(
                "mount something in front of {}: {error}",
                directory.display()
            );
        }
        for entry in fs::read_dir(aside.path()).expect("list the programs") {
            let entry = entry.expect("list the programs");
            let name = entry.file_name();
            if !names.iter().any(|hidden| name == *hidden) {
                symlink(entry.path(), directory.join(name)).expect("link a program");
            }
        }
        self.places.push((aside, directory.to_owned()));
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        for (aside, directory) in self.places.drain(..).rev() {
            // Running programs may still use both mounts, which then end with them.
            let uncovered = umount2(&directory, MntFlags::MNT_DETACH);
            let returned = umount2(aside.path(), MntFlags::MNT_DETACH);
            if let Err(error) = uncovered.and(returned) {
                println!(
                    "show the programs in {} again: {error}",
                    directory.display()
                );
            }
        }
    }
}
