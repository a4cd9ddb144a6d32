//! Which mount a path leads to, asked of nobody who may not answer.

use crate::mountinfo::{self, Mount};
use flexvol_sdk::{Error, Result};
use rustix::io::Errno;
use std::{
    ffi::OsString,
    fs, io,
    path::{Component, Path, PathBuf},
};

/// More links than a path may have (`MAXSYMLINKS`, include/linux/namei.h).
const LINKS: usize = 40;

/// The mount that holds what this absolute path leads to, through symbolic links; `None` where there
/// is nothing. Nothing is opened, and nothing is asked of a file system that somebody else serves:
/// where the path comes to one, that is the answer. So is the mount of a disk that has died.
///
/// # Errors
/// When the mount table or a link on the way cannot be read.
pub fn holding(path: &Path) -> Result<Option<Mount>> {
    let failed = |error: io::Error| {
        Error::system("find the mount of a directory", error).because(path.display().to_string())
    };
    let mounts = mountinfo::read()?;
    let mut place = PathBuf::from("/");
    let (mut rest, mut links) = (parts(path), 0);
    while let Some(part) = rest.pop() {
        if part == ".." {
            place.pop();
            continue;
        }
        place.push(part);
        // What is mounted is no link, and looking whether it is one would ask it.
        if let Some(mount) = on(&mounts, &place) {
            if mount.is_served() {
                return Ok(Some(mount.clone()));
            }
            continue;
        }
        match fs::read_link(&place) {
            Ok(target) => {
                links += 1;
                if links > LINKS {
                    return Err(failed(Errno::LOOP.into()));
                }
                place.pop();
                if target.is_absolute() {
                    place = PathBuf::from("/");
                }
                rest.append(&mut parts(&target));
            }
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::INVAL) => {}
                Some(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
                // A dead disk, or what it left. It is not asked any further either.
                Some(Errno::IO | Errno::SHUTDOWN | Errno::UCLEAN) => break,
                _ => return Err(failed(error)),
            },
        }
    }
    Ok(place
        .ancestors()
        .find_map(|place| on(&mounts, place))
        .cloned())
}

/// The topmost mount at exactly this place.
fn on<'a>(mounts: &'a [Mount], place: &Path) -> Option<&'a Mount> {
    mounts.iter().rev().find(|mount| mount.mount_point == place)
}

/// The names in a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let named = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    });
    named.rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_followed_to_the_mount_they_lead_to() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        symlink("a/b", root.join("inside")).unwrap();
        symlink("/proc/sys", root.join("outside")).unwrap();
        symlink("../../outside", root.join("a/b/up")).unwrap();
        symlink("endless", root.join("endless")).unwrap();
        let mount = |path: &Path| {
            holding(path).map(|found| found.map(|mount| (mount.mount_point, mount.number)))
        };
        let here = mount(&root).unwrap();
        assert!(here.is_some());
        for path in ["a", "inside", "a/../inside/."] {
            assert_eq!(mount(&root.join(path)).unwrap(), here, "{path}");
        }
        let there = mount(Path::new("/proc/sys")).unwrap();
        for path in ["outside", "inside/up", "outside/kernel"] {
            assert_eq!(mount(&root.join(path)).unwrap(), there, "{path}");
        }
        assert_ne!(here, there);
        assert_eq!(mount(&root.join("missing/a")).unwrap(), None);
        let error = mount(&root.join("endless/a")).unwrap_err();
        assert!(error.to_string().contains("find the mount"), "{error}");
    }
}
