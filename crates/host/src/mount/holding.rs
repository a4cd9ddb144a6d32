//! The mount that a path leads to, found without access to file systems that may not answer.

use crate::{
    block::number::DeviceNumber,
    mountinfo::{self, Mount},
};
use flexvol_sdk::{Error, Result};
use rustix::io::Errno;
use std::{
    ffi::OsString,
    fs, io,
    path::{Component, Path, PathBuf},
};

/// Limit of symbolic links in a path (`MAXSYMLINKS`, include/linux/namei.h).
const LINKS: usize = 40;

/// Returns the mount that an absolute path leads to, through symbolic links; `None` if the path does not exist. Opens
/// nothing, and reads links only on the root file system and on the file system `own`, if there is one. If the path
/// enters any other file system, which may be a network one, dead or damaged, the mount of that one is returned.
///
/// # Errors
/// When the mount table or a link on the way cannot be read.
pub fn holding(path: &Path, own: Option<DeviceNumber>) -> Result<Option<Mount>> {
    let failed = |error: io::Error| {
        Error::system("find the mount of a directory", error).because(path.display().to_string())
    };
    let mounts = mountinfo::read()?;
    let mut place = PathBuf::from("/");
    let root = on(&mounts, &place).map(|mount| mount.number);
    let (mut rest, mut links) = (parts(path), 0);
    while let Some(part) = rest.pop() {
        if part == ".." {
            place.pop();
            continue;
        }
        place.push(part);
        // A mount point is not a link, and testing that would access the mounted file system.
        if let Some(mount) = on(&mounts, &place) {
            if [own, root].contains(&Some(mount.number)) {
                continue;
            }
            // The next mount on the path is found by name, whatever file systems the directories between are on.
            match below(&mounts, &place, &rest) {
                Some(names) => {
                    for _ in 1..names {
                        place.extend(rest.pop());
                    }
                }
                None => return Ok(Some(mount.clone())),
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
                _ => return Err(failed(error)),
            },
        }
    }
    Ok(place
        .ancestors()
        .find_map(|place| on(&mounts, place))
        .cloned())
}

/// Returns the topmost mount at exactly this place.
fn on<'a>(mounts: &'a [Mount], place: &Path) -> Option<&'a Mount> {
    mounts.iter().rev().find(|mount| mount.mount_point == place)
}

/// Returns how many of the following names lead to the next mount, if there is one.
fn below(mounts: &[Mount], place: &Path, rest: &[OsString]) -> Option<usize> {
    let mut place = place.to_owned();
    let names = rest.iter().rev().take_while(|name| *name != "..");
    let mut places = names.map(|name| {
        place.push(name);
        on(mounts, &place).is_some()
    });
    places.position(|is_mount| is_mount).map(|at| at + 1)
}

/// Returns the names in a path, last one first.
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
        let mount = crate::mount::of(&fs::File::open(&root).unwrap());
        let own = mount.unwrap().unwrap().number;
        fs::create_dir_all(root.join("a/b")).unwrap();
        symlink("a/b", root.join("inside")).unwrap();
        symlink("/proc/sys", root.join("outside")).unwrap();
        symlink("../../outside", root.join("a/b/up")).unwrap();
        symlink("endless", root.join("endless")).unwrap();
        let mount = |path: &Path| {
            holding(path, Some(own))
                .map(|found| found.map(|mount| (mount.mount_point, mount.number)))
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
