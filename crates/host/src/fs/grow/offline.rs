//! Grows unmounted ext3 and ext4 with their tools, and repairs the remains of an interrupted growth.

use super::{ends_with, ext_geometry, ext_superblock, refuse_beyond, refuse_less, torn};
use crate::{
    block::device::Device,
    exec::{AtDeadline, Limits, Output, Tool, as_typed},
    lock,
    superblock::{ExtDetails, Superblock},
};
use flexvol_sdk::{Bytes, Error, ErrorKind, Filesystem, Result, memory};
use std::{
    ffi::OsStr,
    io::{self, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    time::Duration,
};

/// Time to wait for a check or a growth. The program itself is never killed.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Bits of the exit status of e2fsck(8): 1 errors corrected, 2 reboot wanted, 4 errors left uncorrected, 8 operational
/// error. All others are failures too.
const CORRECTED: i32 = 1 | 2;
const UNCORRECTED: i32 = 4;
const OPERATIONAL: i32 = 8;

/// e2fsck.conf(5) that lets `-p` also correct a resize inode without its blocks (`PR_0_RESIZE_INODE_INVALID` in
/// e2fsck/problem.h).
const REBUILT_RESIZE_INODE: &str = "[problems]\n0x000030 = {\npreen_ok = true\n}\n";

/// Durable record, kept by the caller, of whether the tools that write were started. The error flag, which the tools
/// leave when they fail and `resize2fs` when it is interrupted, does not tell: others leave it too.
pub trait Resizing {
    /// Whether the tools were started and the file system has not been seen grown since.
    fn was_begun(&self) -> bool;

    /// Records that the tools are about to be started.
    ///
    /// # Errors
    /// When this cannot be recorded.
    fn begin(&self) -> Result<()>;
}

/// Checks and grows an unmounted ext3 or ext4 with `e2fsck` and `resize2fs`.
///
/// For kernels and processes that cannot grow it while it is mounted. A damaged file system is left as it is, unless an
/// interrupted `resize2fs` left the damage. The programs inherit `hold`: they are never killed, not even when this
/// process dies.
///
/// # Errors
/// - [`ErrorKind::Busy`]: the device is in use, possibly in another mount namespace.
/// - [`ErrorKind::Conflict`]: the file system is larger than its device, or the kernel or `e2fsck` found damage that a
///   person must examine.
/// - [`ErrorKind::Storage`]: `e2fsck` found damage while it completed an interrupted `resize2fs`.
/// - [`ErrorKind::SizeNotReached`]: also where the file system can grow in place only to a smaller size.
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
    // Both programs claim the device themselves and refuse one that is claimed. So this claim only checks, and the
    // volume's lock keeps the result true.
    drop(device.claim()?);
    let space = device.size()?;
    let (found, details) = ext_superblock(device)?;
    refuse_beyond(found.size, space)?;
    // `resize2fs` sets the error flag while it works, so an interrupted one leaves it.
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
        // Before the check, which reads all inodes and would be repeated at each mount.
        refuse_moving(space, &found, details)?;
        expect_sound(device, hold)?;
    }
    // The tools set the error flag when they fail or are interrupted.
    resizing.begin()?;
    check(device, &found, details, was_cut, hold)?;
    refuse_moving(space, &found, details)?;
    // No size: resize2fs would shrink to it.
    let arguments: [&OsStr; 1] = [device.path().as_os_str()];
    let held = [hold.as_fd(), device.file().as_fd()];
    resize
        .run(&arguments, &limits(&held))?
        .success("grow the file system")?;
    // Whatever the reason, the file system may be neither in its old state nor grown.
    device.sync().map_err(|error| {
        Error::new(ErrorKind::Storage, "cannot write the grown file system out")
            .because(error.report())
    })?;
    let (found, details) = ext_superblock(device)?;
    refuse_less(ext_geometry(&found, details), space)
}

/// Refuses a growth for which `resize2fs` would have to move data. If storage fails midway, or `resize2fs` meets an
/// extent that it cannot handle, nothing repairs the file system.
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

/// Makes an ext3 or ext4 mountable that the kernel refuses, in one of two ways.
///
/// If a power cut wrote only one sector of its superblock, the checksum is written again. Otherwise, if `resize2fs`
/// `was_begun`, the remains of an interrupted `resize2fs` are checked. Anything else is left to a person: `e2fsck -p`
/// would discard a journal with one wrong bit and everything synced into it, and would copy a wrong group descriptor
/// over its backups.
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
    if mends_superblock(device, &found, details)? || mends_descriptors(device, &found, details)? {
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

/// Writes the checksum of a torn superblock again. Returns whether it was torn.
fn mends_superblock(device: &Device, found: &Superblock, details: ExtDetails) -> Result<bool> {
    const DONE: &str = "the superblock was torn and has its checksum again";
    mends_by_copy(device, found, details, torn::write_checksum, DONE)
}

/// Writes group descriptors from the journal where a cut growth left them behind the superblock. Returns whether it did.
fn mends_descriptors(device: &Device, found: &Superblock, details: ExtDetails) -> Result<bool> {
    const DONE: &str =
        "group descriptors were older than the superblock and are as the journal has them";
    mends_by_copy(device, found, details, torn::write_descriptors, DONE)
}

/// Repairs what a copy of the superblock proves, if there is a copy, and logs that it is `done`.
fn mends_by_copy(
    device: &Device,
    found: &Superblock,
    details: ExtDetails,
    mend: fn(&Device, &Superblock, u64) -> Result<bool>,
    done: &str,
) -> Result<bool> {
    let mended = match details.first_copy {
        Some(copy) => mend(device, found, copy)?,
        None => false,
    };
    if mended {
        log::info!("{done}");
        device.sync()?;
    }
    Ok(mended)
}

/// Checks with `e2fsck -f -n`, which writes nothing: `-p` would remove the names of damaged files, and report that it
/// corrected something.
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

/// Checks with `e2fsck -f -p`, using the first copy of the superblock if the primary one is unusable. An interrupted
/// `resize2fs` leaves damage in the resize inode that `-p` does not correct: only that inode is rebuilt.
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

/// Has `e2fsck` rebuild the resize inode, which an interrupted `resize2fs` leaves half written. That inode reserves
/// blocks for later group descriptors and holds no user data. `e2fsck` gets no other permission: the flag that
/// indicates an interrupted `resize2fs` is also set by an `e2fsck -p` that gave up.
fn rebuild_resize_inode(
    tool: &Tool,
    device: &Device,
    held: &[BorrowedFd<'_>; 2],
) -> Result<Output> {
    // Remains in the inode could claim blocks of other files. `-n` turns off the verification of checksums, which a
    // half-written bitmap fails. The check will notice if this failed.
    let clear = ["-w", "-n", "-R", "clri <7>"];
    run(&Tool::find("debugfs")?, &clear, device, held)?;
    let failed = |error: io::Error| Error::system("tell e2fsck what it may correct", error);
    let mut configuration = memory::file(c"e2fsck.conf").map_err(failed)?;
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
    log::info!(
        "{} {}: {}",
        tool.path().display(),
        as_typed(&all),
        ended.status
    );
    Ok(ended)
}

fn limits<'a>(hold: &'a [BorrowedFd<'a>]) -> Limits<'a> {
    Limits {
        deadline: TIMEOUT,
        at_deadline: AtDeadline::Leave,
        inherit: hold,
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
