//! Mounts that nobody sees yet.

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

/// A mount that is in no directory. It can be looked at and grown, and ends when this is dropped
/// or the process dies: nothing is left, whenever that happens.
///
/// The file system is always writable, the mount never honours set-user-id bits or device nodes.
/// Needs Linux 5.2; on older kernels the mount lives in a mount namespace of its own, which ends
/// with the same certainty.
#[derive(Debug)]
pub struct Detached {
    /// What `move_mount` takes; absent on kernels without it.
    mount: Option<OwnedFd>,
    /// Its root directory, open for ioctls.
    root: OwnedFd,
    source: Source,
}

/// What is mounted.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    number: DeviceNumber,
    filesystem: Filesystem,
    /// See [`Device::keeps_blocks`].
    keeps_blocks: bool,
}

impl Source {
    /// The options of the file system, as mount(8) takes them: whoever made it may not decide what
    /// becomes of the node. The superblock of an ext may ask for a panic at the first error, for no
    /// flushes of the disk's cache, and for discards (`tune2fs -e`, `-o`); options outdo it. Since Linux
    /// 6.2 btrfs discards by itself whatever takes discards. XFS keeps no options.
    fn options(&self) -> Vec<&'static str> {
        let mut options = match self.filesystem {
            Filesystem::Ext3 | Filesystem::Ext4 => vec!["errors=remount-ro", "barrier=1"],
            _ => Vec::new(),
        };
        if self.keeps_blocks && self.filesystem != Filesystem::Xfs {
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

    /// Refuses what was mounted in place of this.
    fn expect_own(&self, root: BorrowedFd<'_>) -> Result<()> {
        match self.filesystem {
            Filesystem::Btrfs => own_device::expect(self.number, root),
            _ => Ok(()),
        }
    }

    /// On kernels before 5.2.
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
    /// Mounts the file system of a device. Another mount of it is not in the way: both then show
    /// the same file system.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when the device is in use in another way, or its file system is mounted
    /// read-only. [`ErrorKind::Configuration`] when the kernel has no such file system.
    /// [`ErrorKind::Storage`] when it does not accept this one, the log has its reason, or mounts
    /// another one in its place. That never means the device is blank.
    pub fn new(device: &Device, filesystem: Filesystem) -> Result<Self> {
        let mounted = || Detached::of_any_device(device, filesystem);
        let detached = match filesystem {
            Filesystem::Btrfs => own_device::mounted_from(device, mounted),
            _ => mounted(),
        };
        detached.or_else(|refused| match refused.kind() {
            ErrorKind::Busy => device.expect_no_holder().and(Err(refused)),
            _ => Err(refused),
        })
    }

    fn of_any_device(device: &Device, filesystem: Filesystem) -> Result<Self> {
        let source = Source {
            path: device.path().to_owned(),
            number: device.number(),
            filesystem,
            keeps_blocks: device.keeps_blocks(),
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

    /// The root directory, a descriptor that ioctls accept.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// What kind of file system it is.
    #[must_use]
    pub fn filesystem(&self) -> Filesystem {
        self.source.filesystem
    }

    /// Whether the file system lets nobody write, whatever its mounts ask for.
    ///
    /// # Errors
    /// What the system call says.
    pub fn is_read_only(&self) -> Result<bool> {
        let statvfs = fstatvfs(&self.root)
            .map_err(|error| Error::system("look at the mounted file system", error))?;
        Ok(statvfs.f_flag.contains(StatVfsMountFlags::RDONLY))
    }

    /// Shows the mount at a directory, on top of whatever is mounted there. `read_only` concerns
    /// this mount alone.
    ///
    /// With the mount calls of Linux 5.2 the mount appears finished or not at all. Before them a
    /// read-only one is writable for a moment; killed there it stays so, and a repetition must
    /// mend it (see [`Target::mounted`] and [`Target::set_read_only`]).
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when the directory is gone; otherwise as [`Detached::new`].
    pub fn attach(self, target: &Target, read_only: bool) -> Result<()> {
        let directory = target.directory()?;
        let Some(mount) = &self.mount else {
            return self.attach_by_path(&directory, target, read_only);
        };
        // A second mount of the same file system, because the flags of the first one can only be
        // changed since 5.12 and making one is as cheap.
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
            // What was asked for is not there, so nothing may be.
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

/// The root of a mount, open for ioctls.
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

/// What the kernel has to say about a context, one message a read, until `ENODATA`.
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

/// The public message has the kernel's error only: its text may name devices.
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

/// Mounts in the mount namespace of a thread that ends at once, and takes the mount out of it
/// again: it stays as long as its root directory is open.
fn in_own_namespace(source: &Source) -> Result<OwnedFd> {
    /// The directory that certainly exists: descriptors are named through it elsewhere.
    const PLACE: &str = "/proc";
    let mounted = || {
        unshare(CloneFlags::CLONE_NEWNS)
            .map_err(|error| Error::system("make a mount namespace", error))?;
        // Nothing gets out; unmounting of other volumes still gets in and does not find them busy.
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
        // A thread counts as ended before its namespace is, and until then the device would be
        // busy: the descriptor alone shall hold the mount.
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
