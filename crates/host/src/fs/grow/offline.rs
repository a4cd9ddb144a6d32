//! Growing ext3 and ext4 while they are not mounted, by their tools, and mending what a growth that
//! was cut has left.

use super::{ends_with, ext_geometry, ext_superblock, refuse_beyond, refuse_less, torn};
use crate::{
    block::device::Device,
    exec::{AtDeadline, Limits, Output, Tool},
    lock,
    superblock::Superblock,
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Filesystem, Result};
use rustix::fs::MemfdFlags;
use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    time::Duration,
};

/// How long a check or a growth may take before this process stops waiting. The program itself is
/// never cut.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Bits of the exit status of e2fsck(8): 1 errors corrected, 2 reboot wanted; 4 errors left
/// uncorrected, 8 operational error, and more, of which all are failures.
const CORRECTED: i32 = 1 | 2;
const UNCORRECTED: i32 = 4;
const OPERATIONAL: i32 = 8;

/// e2fsck.conf(5): `-p` also corrects the one problem that a resize inode without its blocks is,
/// `PR_0_RESIZE_INODE_INVALID` in e2fsck/problem.h.
const REBUILT_RESIZE_INODE: &str = "[problems]\n0x000030 = {\npreen_ok = true\n}\n";

/// Checks and grows an ext3 or ext4 that is not mounted, by `e2fsck -f -p` and `resize2fs`: for
/// kernels and processes that cannot grow it mounted.
///
/// `hold` is held by the programs too: they are never cut, not even when this process dies.
///
/// # Errors
/// - [`ErrorKind::Busy`]: the device is in use, somewhere.
/// - [`ErrorKind::Conflict`]: the file system reaches beyond its device.
/// - [`ErrorKind::Storage`]: `e2fsck` found damage that a person must look at.
/// - [`ErrorKind::SizeNotReached`], [`ErrorKind::TimedOut`], [`ErrorKind::ToolMissing`].
/// - [`ErrorKind::Invalid`]: another kind of file system.
pub fn offline(device: &Device, filesystem: Filesystem, hold: &lock::Guard) -> Result<()> {
    if !matches!(filesystem, Filesystem::Ext3 | Filesystem::Ext4) {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("{filesystem} grows only while it is mounted"),
        ));
    }
    // Both programs claim the device themselves and refuse one that is claimed, so this claim
    // only finds out, and the volume's lock keeps it true.
    drop(device.claim()?);
    let space = device.size()?;
    let (found, details) = ext_superblock(device)?;
    refuse_beyond(found.size, space)?;
    // A resize2fs that was cut leaves the error flag, which it sets while it works.
    if ends_with(&found, space) && !details.has_errors {
        return Ok(());
    }
    let resize = Tool::find("resize2fs")?;
    check(device, &found, details.resize_was_cut, hold)?;
    // No size: resize2fs would shrink to it.
    let arguments: [&OsStr; 1] = [device.path().as_os_str()];
    let held = [hold.as_fd(), device.file().as_fd()];
    resize
        .run(&arguments, &limits(&held))?
        .success("grow the file system")?;
    device.sync()?;
    let (found, details) = ext_superblock(device)?;
    refuse_less(ext_geometry(&found, details), space)
}

/// Makes an ext3 or ext4 mountable that the kernel refuses, by one of two steps: where a power cut wrote one
/// sector of its superblock alone, that gets its checksum again; otherwise what a cut `resize2fs` left is
/// checked, if the file system was `growing`.
///
/// Anything else is left as it is for a person. `e2fsck -p` would throw away a journal with a wrong bit and all that
/// was synced into it, and would write a wrong descriptor of a group over its copies.
///
/// # Errors
/// As for [`offline`].
pub fn mend(
    device: &Device,
    filesystem: Filesystem,
    growing: bool,
    hold: &lock::Guard,
) -> Result<()> {
    if !matches!(filesystem, Filesystem::Ext3 | Filesystem::Ext4) {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("{filesystem} is mended by its own log or not at all"),
        ));
    }
    drop(device.claim()?);
    let (found, details) = ext_superblock(device)?;
    if torn::write_checksum(device, &found, first_copy(&found))? {
        log::info!("the superblock was torn and has its checksum again");
        return device.sync();
    }
    if growing && details.resize_was_cut {
        check(device, &found, true, hold)?;
        return device.sync();
    }
    Err(Error::new(
        ErrorKind::Storage,
        "it was not damaged by a cut growth or write, so nothing repairs it but a person",
    ))
}

/// `e2fsck -f -p`. Where the superblock does not do, it gets its checksum again if that is all that is
/// wrong, and otherwise its first copy is used. What a cut `resize2fs` leaves of its own inode is more
/// than `-p` corrects: only that is made anew.
fn check(
    device: &Device,
    found: &Superblock,
    resize_was_cut: bool,
    hold: &lock::Guard,
) -> Result<()> {
    let tool = Tool::find("e2fsck")?;
    let held = [hold.as_fd(), device.file().as_fd()];
    let run = |words: &[&str]| run(&tool, words, device, &held);
    let mut checked = run(&["-f", "-p"])?;
    if checked.status.code() == Some(OPERATIONAL)
        && let Some(copy) = first_copy(found)
    {
        if torn::write_checksum(device, found, Some(copy))? {
            log::info!("the superblock was torn and has its checksum again");
            checked = run(&["-f", "-p"])?;
        }
        if checked.status.code() == Some(OPERATIONAL) {
            let [copy, size] = [copy, found.block.into()].map(|number| number.to_string());
            checked = run(&["-f", "-p", "-b", &copy, "-B", &size])?;
        }
    }
    if checked.status.code() == Some(UNCORRECTED) && resize_was_cut {
        checked = rebuild_resize_inode(&tool, device, &held)?;
    }
    match checked.status.code() {
        Some(code) if code & !CORRECTED == 0 => Ok(()),
        _ => Err(damaged(&checked)),
    }
}

/// Has `e2fsck` make the resize inode anew, which a cut `resize2fs` leaves half written. It keeps the
/// blocks that later group descriptors may take, and nothing of anybody's. `e2fsck` answers no other
/// question: the flag that tells of a cut `resize2fs` is also what an `e2fsck -p` leaves that gave up.
fn rebuild_resize_inode(
    tool: &Tool,
    device: &Device,
    held: &[BorrowedFd<'_>; 2],
) -> Result<Output> {
    // What is left in it could claim blocks of others. Without `-n` a bitmap that was written in part
    // is in the way. That this failed is seen by the check.
    let clear = ["-w", "-n", "-R", "clri <7>"];
    run(&Tool::find("debugfs")?, &clear, device, held)?;
    let failed = |error: io::Error| Error::system("tell e2fsck what it may correct", error);
    let configuration = rustix::fs::memfd_create(c"e2fsck.conf", MemfdFlags::CLOEXEC)
        .map_err(|error| failed(error.into()))?;
    let mut configuration = File::from(configuration);
    configuration
        .write_all(REBUILT_RESIZE_INODE.as_bytes())
        .map_err(failed)?;
    let path = format!("/proc/self/fd/{}", configuration.as_raw_fd());
    let tool = tool.clone().with_variable("E2FSCK_CONFIG", path);
    let [lock, opened] = *held;
    let held = [lock, opened, configuration.as_fd()];
    run(&tool, &["-f", "-p"], device, &held)
}

fn run(tool: &Tool, words: &[&str], device: &Device, held: &[BorrowedFd<'_>]) -> Result<Output> {
    let words = words.iter().map(OsStr::new);
    let all: Vec<_> = words.chain([device.path().as_os_str()]).collect();
    let ended = tool.run(&all, &limits(held))?;
    log::info!("{} {all:?}: {}", tool.path().display(), ended.status);
    Ok(ended)
}

/// The block of the first copy of the superblock: the first of the second group, of which every
/// one has eight blocks for each byte of a block (mke2fs).
fn first_copy(found: &Superblock) -> Option<u64> {
    let block = u64::from(found.block);
    // Blocks of 1 KiB leave the first one to a boot loader.
    let copy = 8 * block + u64::from(block == 1024);
    (Bytes(copy * block) < found.size).then_some(copy)
}

fn limits<'a>(hold: &'a [BorrowedFd<'a>]) -> Limits<'a> {
    Limits {
        deadline: TIMEOUT,
        at_deadline: AtDeadline::Leave,
        hold,
    }
}

fn damaged(checked: &Output) -> Error {
    let said = String::from_utf8_lossy(&checked.stdout);
    Error::new(
        ErrorKind::Storage,
        format!(
            "cannot grow the file system: e2fsck found damage that it does not repair by itself \
             ({})",
            checked.status
        ),
    )
    .because(said.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uuid::Uuid;

    #[test]
    fn the_first_copy_of_the_superblock_begins_the_second_group() {
        let found = |block, size| {
            first_copy(&Superblock {
                filesystem: Filesystem::Ext4,
                uuid: Uuid::from_bytes([1; 16]),
                size: Bytes(size),
                block,
            })
        };
        assert_eq!(found(4096, 300 << 20), Some(32768));
        assert_eq!(found(1024, 300 << 20), Some(8193));
        assert_eq!(found(4096, 128 << 20), None);
    }
}
