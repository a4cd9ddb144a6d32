//! Resolves paths as a process with another root directory would, never outside of that root.

use flexvol_sdk::Bytes;
use rustix::{
    fs::{CWD, Mode, OFlags, openat, readlinkat},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, Metadata},
    io::{self, Read},
    os::{
        fd::AsRawFd,
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
};

/// Most symbolic links followed, as in the kernel (`MAXSYMLINKS` in include/linux/namei.h).
const LINKS: u32 = 40;

/// Root directory that paths are resolved in.
///
/// Paths are walked here component by component, because the kernel's `RESOLVE_IN_ROOT` came with Linux 5.6. All
/// symbolic links, absolute ones and those of /proc included, are read and followed by their text below this root, and
/// `..` never leads above it. On the way files are opened with `O_PATH` only, so no device, no FIFO and no file of a
/// server is really opened.
#[derive(Debug)]
pub struct Root(File);

impl Root {
    /// Opens the root directory at this path.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn at(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path, flags, Mode::empty())?;
        Ok(Root(File::from(root)))
    }

    /// Returns the metadata of the file at a path.
    ///
    /// # Errors
    /// The errors of the system calls; ELOOP for more links than the kernel follows.
    pub fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.find(path)?.metadata()
    }

    /// Reads a regular file that is not longer than `longest`.
    ///
    /// # Errors
    /// As for [`Root::metadata`], and where the file is not regular or is longer.
    pub fn read(&self, path: &Path, longest: Bytes) -> io::Result<Vec<u8>> {
        let found = self.find(path)?;
        if !found.metadata()?.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        let mut bytes = Vec::new();
        // Non-blocking, in case a FIFO has taken its place.
        let file = open_again(&found, OFlags::RDONLY | OFlags::NONBLOCK)?;
        file.take(longest.0 + 1).read_to_end(&mut bytes)?;
        if u64::try_from(bytes.len()).is_ok_and(|length| length <= longest.0) {
            return Ok(bytes);
        }
        Err(io::Error::other(format!("it has more than {longest}")))
    }

    /// Lists the names in a directory.
    ///
    /// # Errors
    /// As for [`Root::metadata`].
    pub fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let found = self.find(path)?;
        let entries = fs::read_dir(own(&found))?;
        entries.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn find(&self, path: &Path) -> io::Result<File> {
        Ok(self.walk(path, &mut |_, _| Ok(()))?.1)
    }

    /// Walks a path and passes each directory and link on the way to `shows`, with its path below this root. That
    /// includes the root and the end of the path. Returns the path of the end, with links resolved, and the file opened
    /// with `O_PATH`.
    ///
    /// # Errors
    /// As for [`Root::metadata`], and the errors of `shows`.
    pub fn walk(
        &self,
        path: &Path,
        shows: &mut dyn FnMut(&Path, &Metadata) -> io::Result<()>,
    ) -> io::Result<(PathBuf, File)> {
        let mut place = PathBuf::from("/");
        let mut above = vec![self.0.try_clone()?];
        shows(&place, &self.0.metadata()?)?;
        let mut links = 0;
        let mut rest = Vec::new();
        push(&mut rest, path);
        while let Some(name) = rest.pop() {
            match name.as_bytes() {
                b"/" => {
                    above.truncate(1);
                    place = PathBuf::from("/");
                    continue;
                }
                b".." => {
                    if above.len() > 1 {
                        above.pop();
                        place.pop();
                    }
                    continue;
                }
                _ => {}
            }
            let directory = above.last().ok_or(Errno::NOENT)?;
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let entry = File::from(openat(directory, &name, flags, Mode::empty())?);
            let metadata = entry.metadata()?;
            shows(&place.join(&name), &metadata)?;
            if metadata.is_symlink() {
                links += 1;
                if links > LINKS {
                    return Err(Errno::LOOP.into());
                }
                let text = readlinkat(&entry, "", Vec::new())?.into_bytes();
                push(&mut rest, Path::new(&OsString::from_vec(text)));
            } else {
                place.push(&name);
                above.push(entry);
            }
        }
        let end = above.pop().ok_or(Errno::NOENT)?;
        Ok((place, end))
    }
}

/// Pushes the names of a path on the stack of those still to be walked.
fn push(rest: &mut Vec<OsString>, path: &Path) {
    let names = path.iter().map(OsStr::to_owned);
    rest.extend(names.collect::<Vec<_>>().into_iter().rev());
}

fn open_again(found: &File, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(File::from(openat(CWD, own(found), flags, Mode::empty())?))
}

/// Path in /proc of a file that this process has open.
fn own(found: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const LONGEST: Bytes = Bytes(16);

    fn root() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("root/etc/sub")).unwrap();
        fs::write(dir.path().join("root/etc/file"), "inside").unwrap();
        fs::write(dir.path().join("file"), "outside").unwrap();
        let root = Root::at(&dir.path().join("root")).unwrap();
        (dir, root)
    }

    #[test]
    fn links_lead_to_where_they_lead_below_the_root() {
        let (dir, root) = root();
        let link = |name: &str, to: &str| symlink(to, dir.path().join("root").join(name)).unwrap();
        link("absolute", "/etc/file");
        link("above", "../../../etc/sub/../file");
        link("chain", "absolute");
        for path in [
            "/etc/file",
            "etc//./file",
            "absolute",
            "above",
            "/chain",
            "/../etc/file",
        ] {
            let read = root.read(Path::new(path), LONGEST).unwrap();
            assert_eq!(read, b"inside", "{path}");
        }
        link("outside", dir.path().join("file").to_str().unwrap());
        link("loop", "loop");
        link("etc/magic", "/proc/self/root/etc/passwd");
        let errno = |path: &str| {
            let error = root.read(Path::new(path), LONGEST).unwrap_err();
            error.raw_os_error().unwrap()
        };
        assert_eq!(errno("outside"), Errno::NOENT.raw_os_error());
        assert_eq!(errno("etc/magic"), Errno::NOENT.raw_os_error());
        assert_eq!(errno("loop"), Errno::LOOP.raw_os_error());
        assert_eq!(errno("etc/file/x"), Errno::NOTDIR.raw_os_error());
        assert_eq!(root.names(Path::new("etc/sub/..")).unwrap().len(), 3);
    }

    #[test]
    fn links_of_the_kernel_lead_nowhere_else() {
        let root = Root::at(Path::new("/")).unwrap();
        let file = tempfile::tempfile().unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        // The link's text names a file that was removed.
        let error = root.metadata(Path::new(&path)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn only_regular_files_that_are_not_too_long_are_read() {
        let (dir, root) = root();
        let etc = dir.path().join("root/etc");
        fs::write(etc.join("long"), [b'x'; 17]).unwrap();
        rustix::fs::mknodat(
            CWD,
            etc.join("fifo"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .unwrap();
        let refused = |path: &str| {
            let error = root.read(Path::new(path), LONGEST).unwrap_err();
            error.to_string()
        };
        assert!(refused("etc/long").contains("more than"));
        for path in ["etc/fifo", "etc/sub", "/"] {
            assert!(refused(path).contains("no regular file"), "{path}");
        }
    }

    #[test]
    fn everything_on_the_way_is_shown() {
        let (dir, root) = root();
        symlink("/etc", dir.path().join("root/link")).unwrap();
        let mut seen = Vec::new();
        let (place, _) = root
            .walk(Path::new("/link/file"), &mut |path, _| {
                seen.push(path.to_str().unwrap().to_owned());
                Ok(())
            })
            .unwrap();
        assert_eq!(place, Path::new("/etc/file"));
        assert_eq!(seen, ["/", "/link", "/etc", "/etc/file"]);
    }
}
