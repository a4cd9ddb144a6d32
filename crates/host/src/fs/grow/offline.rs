//! Growing ext3 and ext4 while they are not mounted, by their tools, and mending what a growth that
//! was cut has left.

use super::{ends_with, ext_geometry, ext_superblock, refuse_beyond, refuse_less, torn};
use crate::{
    block::device::Device,
    exec::{AtDeadline, Limits, Output, Tool},
    lock,
    superblock::{ExtDetails, Superblock},
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

/// What the caller remembers of the tools that write, durably: the flag of errors that they leave when they fail, and
/// `resize2fs` when it is cut, others leave too.
pub trait Resizing {
    /// Whether they were started, and the file system not seen grown since.
    fn was_begun(&self) -> bool;

    /// They are about to be started.
    ///
    /// # Errors
    /// When that may not be remembered.
    fn begin(&self) -> Result<()>;
}

/// Checks and grows an ext3 or ext4 that is not mounted, by `e2fsck` and `resize2fs`: for kernels and processes that
/// cannot grow it mounted. One with damage is left as it is, unless that is what a cut `resize2fs` leaves.
///
/// `hold` is held by the programs too: they are never cut, not even when this process dies.
///
/// # Errors
/// - [`ErrorKind::Busy`]: the device is in use, somewhere.
/// - [`ErrorKind::Conflict`]: the file system reaches beyond its device, or the kernel or `e2fsck` found damage that a
///   person must look at.
/// - [`ErrorKind::Storage`]: so did `e2fsck` while it completed a cut `resize2fs`.
/// - [`ErrorKind::SizeNotReached`], also where it was made to grow in place to less.
/// - [`ErrorKind::TimedOut`], [`ErrorKind::ToolMissing`].
/// - [`ErrorKind::Invalid`]: another kind of file system.
pub fn offline(
    device: &Device,
    filesystem: Filesystem,
    resizing: &impl Resizing,
    hold: &lock::Guard,
) -> Result<()> {
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
    mends_superblock(device, &found, details)?;
    let was_cut = details.resize_was_cut && resizing.was_begun();
    if !was_cut {
        if details.has_errors {
            return Err(left_for_a_person("the kernel has found errors in it"));
        }
        // Before the check, which reads all inodes and which each mount would repeat.
        refuse_moving(space, &found, details)?;
        expect_sound(device, hold)?;
    }
    // What follows sets the flag of errors when it fails or is cut.
    resizing.begin()?;
    check(device, &found, details, was_cut, hold)?;
    refuse_moving(space, &found, details)?;
    // No size: resize2fs would shrink to it.
    let arguments: [&OsStr; 1] = [device.path().as_os_str()];
    let held = [hold.as_fd(), device.file().as_fd()];
    resize
        .run(&arguments, &limits(&held))?
        .success("grow the file system")?;
    // It may be neither as it was nor as it shall be, whatever the reason.
    device.sync().map_err(|error| {
        Error::new(ErrorKind::Storage, "cannot write the grown file system out")
            .because(error.report())
    })?;
    let (found, details) = ext_superblock(device)?;
    refuse_less(ext_geometry(&found, details), space)
}

/// What `resize2fs` has moved in part, when storage fails or an extent of what it moves is not to its liking, nothing mends.
fn refuse_moving(space: Bytes, found: &Superblock, details: ExtDetails) -> Result<()> {
    let block = u64::from(found.block);
    if space.0 / block <= details.most_in_place {
        return Ok(());
    }
    let most = Bytes(details.most_in_place.saturating_mul(block));
    Err(Error::new(
        ErrorKind::SizeNotReached,
        format!(
            "cannot grow the file system to {space} without the kernel: resize2fs would have to move what is in it beyond {most}; call the driver with CAP_SYS_RESOURCE, or copy the data to a new volume"
        ),
    ))
}

/// Makes an ext3 or ext4 mountable that the kernel refuses, by one of two steps: where a power cut wrote one
/// sector of its superblock alone, that gets its checksum again; otherwise what a cut `resize2fs` left is
/// checked, if `resize2fs` `was_begun`.
///
/// Anything else is left as it is for a person. `e2fsck -p` would throw away a journal with a wrong bit and all that
/// was synced into it, and would write a wrong descriptor of a group over its copies.
///
/// # Errors
/// As for [`offline`].
pub fn mend(
    device: &Device,
    filesystem: Filesystem,
    was_begun: bool,
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
    if mends_superblock(device, &found, details)? {
        return Ok(());
    }
    if was_begun && details.resize_was_cut {
        check(device, &found, details, true, hold)?;
        return device.sync();
    }
    Err(Error::new(
        ErrorKind::Storage,
        "it was not damaged by a cut growth or write, so nothing repairs it but a person",
    ))
}

/// Whether the superblock was torn; then it has its checksum again.
fn mends_superblock(device: &Device, found: &Superblock, details: ExtDetails) -> Result<bool> {
    let was_torn = match details.first_copy {
        Some(copy) => torn::write_checksum(device, found, copy)?,
        None => false,
    };
    if was_torn {
        log::info!("the superblock was torn and has its checksum again");
        device.sync()?;
    }
    Ok(was_torn)
}

/// `e2fsck -f -n`, which writes nothing: `-p` would take the names of damaged files away, and say that it corrected something.
fn expect_sound(device: &Device, hold: &lock::Guard) -> Result<()> {
    let held = [hold.as_fd(), device.file().as_fd()];
    let checked = run(&Tool::find("e2fsck")?, &["-f", "-n"], device, &held)?;
    match checked.status.success() {
        true => Ok(()),
        false => Err(left_for_a_person("e2fsck found damage in it").because(said(&checked))),
    }
}

fn left_for_a_person(why: &str) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!(
            "cannot grow the file system: {why}; stop its pods, copy the volume, and check it with e2fsck by hand"
        ),
    )
}

/// `e2fsck -f -p`. Where the superblock does not do, its first copy is used. What a cut `resize2fs` leaves of its own
/// inode is more than `-p` corrects: only that is made anew.
fn check(
    device: &Device,
    found: &Superblock,
    details: ExtDetails,
    was_cut: bool,
    hold: &lock::Guard,
) -> Result<()> {
    let tool = Tool::find("e2fsck")?;
    let held = [hold.as_fd(), device.file().as_fd()];
    let run = |words: &[&str]| run(&tool, words, device, &held);
    let mut checked = run(&["-f", "-p"])?;
    if checked.status.code() == Some(OPERATIONAL)
        && let Some(copy) = details.first_copy
    {
        let [copy, size] = [copy, found.block.into()].map(|number| number.to_string());
        checked = run(&["-f", "-p", "-b", &copy, "-B", &size])?;
    }
    if checked.status.code() == Some(UNCORRECTED) && was_cut {
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

fn limits<'a>(hold: &'a [BorrowedFd<'a>]) -> Limits<'a> {
    Limits {
        deadline: TIMEOUT,
        at_deadline: AtDeadline::Leave,
        hold,
    }
}

fn said(checked: &Output) -> String {
    String::from_utf8_lossy(&checked.stdout).trim().to_owned()
}

fn damaged(checked: &Output) -> Error {
    Error::new(
        ErrorKind::Storage,
        format!(
            "cannot grow the file system: e2fsck found damage that it does not repair by itself \
             ({})",
            checked.status
        ),
    )
    .because(said(checked))
}
