//! Detached mounts.

use super::{Target, descriptor_path, own_device, target::Flush};
use crate::block::{device::Device, number::DeviceNumber};
use flexvol_sdk::{Error, ErrorKind, Filesystem, Result};
use nix::{
    mount::{MntFlags, MsFlags, umount2},
    sched::{CloneFlags, unshare},
};
use rustix::{
    fs::{CWD, Mode, OFlags, StatVfsMountFlags, fstatvfs, openat},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create,
        fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
    },
};
use std::{
    fs::File,
    io::Read,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    thread,
};

/// A mount that is not attached to any directory. It can be examined and grown. It ends when this is dropped or the
/// process dies, so nothing ever remains.
///
/// The file system is always writable; the mount is always `nosuid` and `nodev`. Needs Linux 5.2; on older kernels the
/// mount lives in a mount namespace of its own, which ends just as reliably.
#[derive(Debug)]
pub struct Detached {
    /// Argument of `move_mount`; absent on kernels without that call.
    mount: Option<OwnedFd>,
    /// The mount's root directory, open for ioctls.
    root: OwnedFd,
    source: Source,
}

/// The device and file system that are mounted.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    number: DeviceNumber,
    filesystem: Filesystem,
    /// See [`Device::is_fully_allocated`].
    is_fully_allocated: bool,
}

impl Source {
    /// Returns the mount options, as mount(8) takes them. They override what a hostile superblock may ask for: in ext3
    /// and ext4 a panic at the first error, no flushes of the disk's cache, and discards (`tune2fs -e`, `-o`). Since
    /// Linux 6.2 btrfs discards by default on devices that support it. XFS stores no options.
    fn options(&self) -> Vec<&'static str> {
        let mut options = match self.filesystem {
            Filesystem::Ext3 | Filesystem::Ext4 => vec!["errors=remount-ro", "barrier=1"],
            _ => Vec::new(),
        };
        if self.is_fully_allocated && self.filesystem != Filesystem::Xfs {
            options.push("nodiscard");
        }
        options
    }

    fn configure(&self, context: &OwnedFd) -> rustix::io::Result<()> {
        fsconfig_set_string(context, c"source", &self.path)?;
        for option in self.options() {
            match option.split_once('=') {
                Some((key, value)) => fsconfig_set_string(context, key, value)?,
                None => fsconfig_set_flag(context, option)?,
            }
        }
        fsconfig_create(context)
    }

    /// Refuses another file system that the kernel mounted in place of this one.
    fn expect_own(&self, root: BorrowedFd<'_>) -> Result<()> {
        match self.filesystem {
            Filesystem::Btrfs => own_device::expect(self.number, root),
            _ => Ok(()),
        }
    }

    /// Mounts with `mount(2)`, on kernels before 5.2.
    fn mount_by_path(&self, directory: &Path) -> Result<()> {
        nix::mount::mount(
            Some(&self.path),
            directory,
            Some(self.filesystem.as_str()),
            MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
            Some(self.options().join(",").as_str()),
        )
        .map_err(|error| refused(self.filesystem, error as i32, String::new()))
    }
}

impl Detached {
    /// Mounts the file system of a device. It may be mounted elsewhere: both mounts then show the same file system.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when the device is in use in another way, or its file system is mounted read-only.
    /// [`ErrorKind::Configuration`] when the kernel does not support this type of file system. [`ErrorKind::Storage`]
    /// when the kernel rejects this file system (the log has the reason) or mounts another one in its place. That never
    /// means that the device is blank.
    pub fn new(device: &Device, filesystem: Filesystem) -> Result<Self> {
        let mounted = || Detached::of_any_device(device, filesystem);
        let detached = match filesystem {
            Filesystem::Btrfs => own_device::mounted_from(device, mounted),
            _ => mounted(),
        };
        detached.or_else(|refused| match refused.kind() {
            ErrorKind::Busy => device.expect_not_stacked().and(Err(refused)),
            _ => Err(refused),
        })
    }

    fn of_any_device(device: &Device, filesystem: Filesystem) -> Result<Self> {
        let source = Source {
            path: device.path().to_owned(),
            number: device.number(),
            filesystem,
            is_fully_allocated: device.is_fully_allocated(),
        };
        let (mount, root) = match fsmounted(&source, MountAttrFlags::empty()) {
            Err(Failed::NoSuchCall) => (None, in_own_namespace(&source)?),
            Err(Failed::With(error)) => return Err(error),
            Ok(mount) => {
                let root = root_of(&mount)?;
                (Some(mount), root)
            }
        };
        Ok(Detached {
            mount,
            root,
            source,
        })
    }

    /// Returns the root directory, a descriptor that accepts ioctls.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Returns the type of the file system.
    #[must_use]
    pub fn filesystem(&self) -> Filesystem {
        self.source.filesystem
    }

    /// Whether the file system itself is read-only, regardless of the flags of its mounts.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn is_read_only(&self) -> Result<bool> {
        let statvfs = fstatvfs(&self.root)
            .map_err(|error| Error::system("look at the mounted file system", error))?;
        Ok(statvfs.f_flag.contains(StatVfsMountFlags::RDONLY))
    }

    /// Attaches the mount to a directory, on top of whatever is mounted there. `read_only` applies to this mount alone.
    ///
    /// With the mount calls of Linux 5.2 the mount appears with all its flags or not at all. On older kernels a
    /// read-only mount is writable for a moment, and stays so if the process is killed then; a retry must mend it (see
    /// [`Target::mounted`] and [`Target::set_read_only`]).
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when the directory is gone; otherwise as [`Detached::new`].
    pub fn attach(self, target: &Target, read_only: bool) -> Result<()> {
        let directory = target.directory()?;
        let Some(mount) = &self.mount else {
            return self.attach_by_path(&directory, target, read_only);
        };
        // Creates a second mount of the same file system: the first one's flags can only be changed since 5.12, and
        // this is as cheap.
        let twin;
        let mount = if read_only {
            twin = fsmounted(&self.source, MountAttrFlags::MOUNT_ATTR_RDONLY)
                .map_err(Failed::into_error)?;
            self.source.expect_own(root_of(&twin)?.as_fd())?;
            &twin
        } else {
            mount
        };
        move_mount(
            mount,
            c"",
            &directory,
            c"",
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH,
        )
        .map_err(|error| Error::system("mount the file system on its directory", error))
    }

    fn attach_by_path(&self, directory: &OwnedFd, target: &Target, read_only: bool) -> Result<()> {
        self.source.mount_by_path(&descriptor_path(directory))?;
        let done = target
            .root()
            .and_then(|root| self.source.expect_own(root.as_fd()))
            .and_then(|()| match read_only {
                true => target.set_read_only(true),
                false => Ok(()),
            });
        done.inspect_err(|_| {
            // The mount is not as asked for, so it must not stay.
            if let Err(error) = target.unmount(Flush::Filesystem) {
                log::error!("cannot undo a mount: {}", error.report());
            }
        })
    }
}

impl AsFd for Detached {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file()
    }
}

/// Opens the root of a mount for ioctls.
fn root_of(mount: &OwnedFd) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(mount, c".", flags, Mode::empty())
        .map_err(|error| Error::system("open the mounted file system", error))
}

enum Failed {
    NoSuchCall,
    With(Error),
}

impl Failed {
    fn into_error(self) -> Error {
        match self {
            Failed::With(error) => error,
            Failed::NoSuchCall => Error::system("mount the file system", Errno::NOSYS),
        }
    }
}

fn fsmounted(source: &Source, attributes: MountAttrFlags) -> Result<OwnedFd, Failed> {
    let filesystem = source.filesystem;
    let context = match fsopen(filesystem.as_str(), FsOpenFlags::FSOPEN_CLOEXEC) {
        Ok(context) => context,
        Err(Errno::NOSYS) => return Err(Failed::NoSuchCall),
        Err(error) => {
            let error = refused(filesystem, error.raw_os_error(), String::new());
            return Err(Failed::With(error));
        }
    };
    source
        .configure(&context)
        .and_then(|()| {
            fsmount(
                &context,
                FsMountFlags::FSMOUNT_CLOEXEC,
                MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | attributes,
            )
        })
        .map_err(|error| Failed::With(refused(filesystem, error.raw_os_error(), reasons(context))))
}

/// Returns the kernel's messages about a context: one message a read, until `ENODATA`.
fn reasons(context: OwnedFd) -> String {
    let mut context = File::from(context);
    let mut buffer = [0; 1024];
    let mut reasons = Vec::new();
    while let Ok(length @ 1..) = context.read(&mut buffer) {
        let reason = String::from_utf8_lossy(&buffer[..length]);
        reasons.push(reason.trim_end().to_owned());
    }
    reasons.join("; ")
}

/// Builds the error of a failed mount. The kernel's messages go to the log only, because they may name devices.
fn refused(filesystem: Filesystem, errno: i32, reasons: String) -> Error {
    let system = std::io::Error::from_raw_os_error(errno);
    let (kind, message) = match errno {
        libc::ENODEV => (
            ErrorKind::Configuration,
            format!("cannot mount the volume: the kernel of this node has no {filesystem}"),
        ),
        libc::EBUSY => (
            ErrorKind::Busy,
            format!(
                "cannot mount the volume: its device is in use, or its {filesystem} has become \
                 read-only"
            ),
        ),
        libc::EPERM => (
            ErrorKind::CapabilityMissing,
            "cannot mount the volume: this process lacks CAP_SYS_ADMIN".to_owned(),
        ),
        _ => (
            ErrorKind::Storage,
            format!(
                "cannot mount the volume: the kernel does not accept its {filesystem}: {system}"
            ),
        ),
    };
    let error = Error::new(kind, message);
    match reasons.is_empty() {
        true => error.because(system),
        false => error.because(reasons),
    }
}

/// Mounts in the mount namespace of a short-lived thread, and detaches the mount there. It lives as long as the
/// descriptor of its root directory is open.
fn in_own_namespace(source: &Source) -> Result<OwnedFd> {
    /// Mount point inside that namespace. /proc certainly exists: descriptors are named through it elsewhere.
    const PLACE: &str = "/proc";
    let mounted = || {
        unshare(CloneFlags::CLONE_NEWNS)
            .map_err(|error| Error::system("make a mount namespace", error))?;
        // As a slave, the namespace propagates no mount to others, but still receives their unmounts, so it keeps no
        // other volume busy.
        nix::mount::mount(
            None::<&str>,
            "/",
            None::<&str>,
            MsFlags::MS_REC | MsFlags::MS_SLAVE,
            None::<&str>,
        )
        .map_err(|error| Error::system("make a mount namespace private", error))?;
        source.mount_by_path(Path::new(PLACE))?;
        let root = openat(
            CWD,
            PLACE,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(|error| Error::system("open the mounted file system", error))?;
        // A thread counts as ended before its namespace is gone, and the device would be busy until then. So only the
        // descriptor may hold the mount.
        umount2(PLACE, MntFlags::MNT_DETACH)
            .map_err(|error| Error::system("leave a mount to its descriptor", error))?;
        Ok(root)
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("mount".to_owned())
            .spawn_scoped(scope, mounted)
            .map_err(|error| Error::system("start a thread", error))?;
        thread.join().unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Bug,
                "cannot mount the volume: a thread panicked",
            ))
        })
    })
}
