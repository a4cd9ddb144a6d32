//! Opens entries of a pool's directories, and never anything outside.

use crate::mountinfo;
use rustix::{
    fs::{Mode, OFlags, ResolveFlags},
    io::Errno,
};
use std::{
    ffi::{CStr, CString},
    fs::File,
    io,
};

/// Opens one entry of a directory: no symbolic link, no mount point, no path. `openat2` refuses all of these. Before
/// Linux 5.6, `O_NOFOLLOW` and a comparison of mount ids do the same for a single component.
///
/// # Errors
/// EINVAL for a name that is a path, ELOOP for a symbolic link, EXDEV for a mount, otherwise what the system call says.
pub(crate) fn open(directory: &File, name: &str, flags: OFlags) -> io::Result<File> {
    open_entry(directory, &CString::new(name)?, flags)
}

/// Opens one entry by a name as directories have it, which need not be text.
///
/// # Errors
/// As for [`open`].
pub(crate) fn open_entry(directory: &File, name: &CStr, flags: OFlags) -> io::Result<File> {
    let bytes = name.to_bytes();
    if bytes.contains(&b'/') || matches!(bytes, b"" | b"." | b"..") {
        return Err(Errno::INVAL.into());
    }
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let inside = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(directory, name, flags, Mode::empty(), inside) {
        Err(Errno::NOSYS) => open_component(directory, name, flags),
        result => Ok(File::from(result?)),
    }
}

fn open_component(directory: &File, name: &CStr, flags: OFlags) -> io::Result<File> {
    let file = File::from(rustix::fs::openat(directory, name, flags, Mode::empty())?);
    // Mount ids are compared, not `st_dev`: each Btrfs subvolume has an `st_dev` of its own.
    if mountinfo::id_of(&file)? != mountinfo::id_of(directory)? {
        return Err(Errno::XDEV.into());
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn only_entries_of_the_directory_open_with_and_without_openat2() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("pool");
        fs::create_dir_all(base.join("sub")).unwrap();
        fs::write(base.join("image"), "x").unwrap();
        fs::write(dir.path().join("outside"), "x").unwrap();
        symlink("image", base.join("link")).unwrap();
        symlink("/proc/self/exe", base.join("magic")).unwrap();
        let base = File::open(base).unwrap();
        let errno = |result: io::Result<File>| result.unwrap_err().raw_os_error().unwrap();

        for open in [open, open_nofollow] {
            open(&base, "image", OFlags::RDONLY).unwrap();
            for link in ["link", "magic"] {
                let found = errno(open(&base, link, OFlags::RDONLY));
                assert_eq!(found, Errno::LOOP.raw_os_error(), "{link}");
            }
            let found = errno(open(&base, "missing", OFlags::RDONLY));
            assert_eq!(found, Errno::NOENT.raw_os_error());
        }
        for path in ["", ".", "..", "../outside", "sub/../image", "/etc/passwd"] {
            let found = errno(open(&base, path, OFlags::RDONLY));
            assert_eq!(found, Errno::INVAL.raw_os_error(), "{path}");
        }
        let proc = File::open("/").unwrap();
        for open in [open, open_nofollow] {
            let found = errno(open(&proc, "proc", OFlags::RDONLY));
            assert_eq!(found, Errno::XDEV.raw_os_error());
        }
    }

    fn open_nofollow(directory: &File, name: &str, flags: OFlags) -> io::Result<File> {
        let name = CString::new(name).unwrap();
        open_component(directory, &name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC)
    }
}
