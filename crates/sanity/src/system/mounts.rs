//! The mount table, from `/proc`.

use anyhow::{Context, Result};
use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mount {
    /// `major:minor`.
    pub device: String,
    /// The part of the file system that is mounted.
    pub root: PathBuf,
    pub point: PathBuf,
    /// Options of this mount, without those of the superblock.
    pub options: String,
    pub filesystem: String,
    pub source: String,
}

/// All mounts that this thread sees, in the order in which they were made.
pub fn all() -> Result<Vec<Mount>> {
    // Not `self`: a check's thread may have a mount namespace of its own.
    read("/proc/thread-self/mountinfo").context("read the mount table")
}

/// All mounts that another process sees.
pub fn of_process(id: i32) -> io::Result<Vec<Mount>> {
    read(&format!("/proc/{id}/mountinfo"))
}

fn read(path: &str) -> io::Result<Vec<Mount>> {
    let text = fs::read(path)?;
    let lines = text.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(parse).collect())
}

/// Parses the fields as `proc_pid_mountinfo(5)` has them: six, optional ones, a dash, three.
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let device = fields.nth(2).map(text)?;
    let root = decoded(fields.next()?);
    let point = decoded(fields.next()?);
    let options = fields.next().map(text)?;
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let filesystem = rest.next().map(text)?;
    let source = rest.next().map_or_else(String::new, |field| {
        decoded(field).to_string_lossy().into_owned()
    });
    Some(Mount {
        device,
        root,
        point,
        options,
        filesystem,
        source,
    })
}

/// Decodes the octal escapes of the kernel for space, tab, newline and backslash.
fn decoded(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| first == b'\\');
        let code = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(code) = code {
            bytes.push(code);
            rest = &after[3..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    OsString::from_vec(bytes).into()
}

/// Mounts on exactly this directory, the topmost last.
pub fn at(point: &Path) -> Result<Vec<Mount>> {
    let mut found = all()?;
    found.retain(|mount| mount.point == point);
    Ok(found)
}

/// Mounts on or below this directory.
pub fn below(directory: &Path) -> Result<Vec<Mount>> {
    let mut found = all()?;
    found.retain(|mount| mount.point.starts_with(directory));
    Ok(found)
}

/// Whether all mounts of that file system are in the tester's directory, including those that process 1
/// sees.
pub fn is_alone(mount: &Mount, directory: &Path) -> Result<bool> {
    let machine = of_process(1).context("read the machine's mount table")?;
    Ok(is_alone_in(
        mount,
        directory,
        all()?.into_iter().chain(machine),
    ))
}

fn is_alone_in(mount: &Mount, directory: &Path, all: impl Iterator<Item = Mount>) -> bool {
    let mut same = all.filter(|other| other.device == mount.device);
    mount.root == Path::new("/") && same.all(|other| other.point.starts_with(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_read_with_octal_and_optional_fields() {
        let line = br"36 35 98:0 /mnt1 /mnt\0402 ro,noatime master:1 shared:2 - ext3 /dev/root rw";
        let mount = parse(line).unwrap();
        assert_eq!(mount.point, Path::new("/mnt 2"));
        assert_eq!(
            (mount.device.as_str(), mount.filesystem.as_str()),
            ("98:0", "ext3")
        );
        assert_eq!(mount.options, "ro,noatime");
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn a_file_system_that_is_mounted_elsewhere_is_not_the_testers_alone() {
        let mount = |line: &str| parse(line.as_bytes()).unwrap();
        let volume = mount("36 35 7:1 / /scratch/pod rw - xfs /dev/loop1 rw");
        let bound = mount("37 35 8:1 /pool/volume /scratch/pod rw - ext4 /dev/sda1 rw");
        let root = mount("20 1 8:1 / / rw - ext4 /dev/sda1 rw");
        let all = || [volume.clone(), bound.clone(), root.clone()].into_iter();
        let scratch = Path::new("/scratch");
        assert!(is_alone_in(&volume, scratch, all()));
        assert!(!is_alone_in(&bound, scratch, all()));
        assert!(!is_alone_in(
            &mount("38 1 8:1 / /scratch/x rw - ext4 x rw"),
            scratch,
            all()
        ));
    }

    #[test]
    fn this_process_sees_its_root() {
        assert!(
            all()
                .unwrap()
                .iter()
                .any(|mount| mount.point == Path::new("/"))
        );
    }
}
