//! Programs this crate cannot do without: mkfs, e2fsck, resize2fs.

use crate::{deadline::Deadline, sys};
use flexvol_sdk::{Error, ErrorKind, Result};
use rustix::{
    fs::{FallocateFlags, MemfdFlags},
    process::{Pid, Signal},
};
use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    os::{
        fd::BorrowedFd,
        unix::{
            fs::{FileExt, MetadataExt, PermissionsExt},
            process::ExitStatusExt,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// Where programs are looked for, in this order. `PATH` belongs to whoever started the driver.
const PLACES: &str = "/var/lib/flexvol/bin:/usr/sbin:/sbin:/usr/bin:/bin";

/// What is kept of each of a program's two outputs.
const OUTPUT_LIMIT: u64 = 64 << 10;

/// How long a killed program may take to go; one that waits for a dead disk takes longer.
const DEATH: Duration = Duration::from_secs(5);

/// A program on this node.
#[derive(Clone, Debug)]
pub struct Tool {
    path: PathBuf,
}

/// What [`Tool::run`] does when the time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtDeadline {
    /// Kill the program and what it started.
    Kill,
    /// Leave it alone: it must not be cut, and goes on with the lock it holds.
    Leave,
}

/// How a program may run.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// The time it has.
    pub deadline: Duration,
    /// What happens then.
    pub at_deadline: AtDeadline,
    /// What the program keeps open together with this process, and longer if this one dies: the
    /// volume's lock, and the device it works on. A loop device that nobody keeps open is given
    /// to the next volume, which an orphan would then write to.
    pub hold: &'a [BorrowedFd<'a>],
}

/// What a program that ended left behind.
#[derive(Debug)]
pub struct Output {
    /// The program's file name.
    pub program: OsString,
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output, the first 64 KiB.
    pub stdout: Vec<u8>,
    /// Its standard error, the first 64 KiB.
    pub stderr: Vec<u8>,
}

impl Tool {
    /// Looks for a program, by a name that is no path, in fixed directories; only root may be able
    /// to write to it.
    ///
    /// # Errors
    /// [`ErrorKind::ToolMissing`], which names the Debian package that has it.
    pub fn find(name: &str) -> Result<Self> {
        which::WhichConfig::new_with_sys(FixedPlaces)
            .binary_name(name.into())
            .custom_path_list(PLACES.into())
            .first_result()
            .and_then(|path| match name.contains('/') {
                true => Err(which::Error::CannotFindBinaryPath),
                false => Ok(path),
            })
            .map(|path| Tool { path })
            .map_err(|error| {
                let package = match package_of(name) {
                    Some(package) => format!(" (Debian package {package})"),
                    None => String::new(),
                };
                Error::new(
                    ErrorKind::ToolMissing,
                    format!("{name} is not installed on the node{package}"),
                )
                .because(error)
            })
    }

    /// The program an administrator named by its absolute path. Nobody but root and this
    /// process's own user may be able to write to it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where there is no such file, [`ErrorKind::Denied`] where it cannot
    /// be trusted or executed.
    pub fn at(path: &Path) -> Result<Self> {
        let metadata =
            fs::metadata(path).map_err(|error| Error::system("find the program", error))?;
        let mode = metadata.permissions().mode();
        let owned = [0, rustix::process::geteuid().as_raw()].contains(&metadata.uid());
        if !path.is_absolute() || !metadata.is_file() || mode & 0o111 == 0 {
            return Err(Error::new(
                ErrorKind::Denied,
                "that is no program: an absolute path of an executable file is needed",
            ));
        }
        if !owned || mode & 0o022 != 0 {
            return Err(Error::new(
                ErrorKind::Denied,
                "others than root could have written the program; it is not run",
            ));
        }
        Ok(Tool { path: path.into() })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs the program to its end, whatever its exit status.
    ///
    /// It gets these arguments, `PATH` and `LC_ALL=C`, an empty standard input, `/` as its
    /// directory, 077 as its umask, a session of its own, and no descriptor but its three and
    /// those it is to hold. What it started itself is not waited for.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] at the deadline, otherwise why it could not be started.
    pub fn run(&self, arguments: &[&OsStr], limits: &Limits<'_>) -> Result<Output> {
        let name = self.path.file_name().unwrap_or_default();
        let shown = name.display();
        let failed = |error: io::Error| Error::system(&format!("run {shown}"), error);
        let started = Instant::now();
        // Files in memory, not pipes: nothing must read them for the program to go on, it cannot
        // die of a broken pipe when it is left alone, and whoever inherits them delays nobody.
        let (stdout, stderr) = (capture().map_err(failed)?, capture().map_err(failed)?);
        let mut command = Command::new(&self.path);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", PLACES)
            .env("LC_ALL", "C")
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(stdout.try_clone().map_err(failed)?)
            .stderr(stderr.try_clone().map_err(failed)?);
        sys::child::isolate(&mut command, limits.hold).map_err(failed)?;
        let mut child = command.spawn().map_err(failed)?;

        let mut deadline = Deadline::after(limits.deadline);
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break status;
            }
            discard_excess(&stdout);
            discard_excess(&stderr);
            if !deadline.pause() {
                return Err(give_up(child, limits).because(format!("{arguments:?}")));
            }
        };
        log::debug!(
            "{} {arguments:?}: {status} after {} ms",
            self.path.display(),
            started.elapsed().as_millis()
        );
        Ok(Output {
            program: name.to_owned(),
            status,
            stdout: captured(&stdout).map_err(failed)?,
            stderr: captured(&stderr).map_err(failed)?,
        })
    }
}

impl Output {
    /// Checks that the program says it succeeded. That is necessary, not sufficient: what it was
    /// to do must be measured.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`]; `doing` names what was tried ("make the file system"). What the
    /// program wrote goes to the log only.
    pub fn success(self, doing: &str) -> Result<Self> {
        if self.status.success() {
            return Ok(self);
        }
        let ending = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "unknown ending".to_owned(),
        };
        let said = if self.stderr.is_empty() {
            &self.stdout
        } else {
            &self.stderr
        };
        Err(Error::new(
            ErrorKind::Storage,
            format!(
                "cannot {doing}: {} failed ({ending})",
                self.program.display()
            ),
        )
        .because(String::from_utf8_lossy(said).trim().to_owned()))
    }
}

fn give_up(mut child: Child, limits: &Limits<'_>) -> Error {
    let seconds = limits.deadline.as_secs_f32();
    if limits.at_deadline == AtDeadline::Leave {
        return Error::new(
            ErrorKind::TimedOut,
            format!("the operation goes on in the background after {seconds:.0} s; try again"),
        );
    }
    // The child leads a session, so its group has its number and cannot be anybody else's as long
    // as it was not waited for.
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        && let Err(error) = rustix::process::kill_process_group(pid, Signal::KILL)
    {
        log::warn!("cannot kill process group {}: {error}", child.id());
    }
    let mut death = Deadline::after(DEATH);
    while matches!(child.try_wait(), Ok(None)) && death.pause() {}
    Error::new(
        ErrorKind::TimedOut,
        format!("the operation was stopped because it did not end within {seconds:.0} s"),
    )
}

fn capture() -> io::Result<File> {
    let file = rustix::fs::memfd_create(c"output", MemfdFlags::CLOEXEC)?;
    Ok(File::from(file))
}

/// Frees the memory of what will not be kept.
fn discard_excess(output: &File) {
    let excess = output
        .metadata()
        .map_or(0, |m| m.len().saturating_sub(OUTPUT_LIMIT));
    if excess > 0 {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Err(error) = rustix::fs::fallocate(output, flags, OUTPUT_LIMIT, excess) {
            log::debug!("cannot discard a program's output: {error}");
        }
    }
}

fn captured(output: &File) -> io::Result<Vec<u8>> {
    let length = output.metadata()?.len().min(OUTPUT_LIMIT);
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    output.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn package_of(name: &str) -> Option<&'static str> {
    Some(match name {
        "mkfs.xfs" => "xfsprogs",
        "mkfs.ext3" | "mkfs.ext4" | "mke2fs" | "e2fsck" | "resize2fs" => "e2fsprogs",
        "mkfs.btrfs" => "btrfs-progs",
        "lvm" => "lvm2",
        _ => return None,
    })
}

/// The system as `which` may see it: no environment, no home directory, no current directory.
#[derive(Clone)]
struct FixedPlaces;

impl which::sys::Sys for FixedPlaces {
    type ReadDirEntry = fs::DirEntry;
    type Metadata = fs::Metadata;

    fn is_windows(&self) -> bool {
        false
    }

    fn current_dir(&self) -> io::Result<PathBuf> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn home_dir(&self) -> Option<PathBuf> {
        None
    }

    fn env_split_paths(&self, paths: &OsStr) -> Vec<PathBuf> {
        std::env::split_paths(paths).collect()
    }

    fn env_path(&self) -> Option<OsString> {
        None
    }

    fn env_path_ext(&self) -> Option<OsString> {
        None
    }

    fn metadata(&self, path: &Path) -> io::Result<fs::Metadata> {
        fs::metadata(path)
    }

    fn symlink_metadata(&self, path: &Path) -> io::Result<fs::Metadata> {
        fs::symlink_metadata(path)
    }

    fn read_dir(
        &self,
        path: &Path,
    ) -> io::Result<Box<dyn Iterator<Item = io::Result<fs::DirEntry>>>> {
        Ok(Box::new(fs::read_dir(path)?))
    }

    fn is_valid_executable(&self, path: &Path) -> io::Result<bool> {
        let metadata = fs::metadata(path)?;
        let mode = metadata.permissions().mode();
        Ok(metadata.is_file() && mode & 0o111 != 0 && mode & 0o022 == 0 && metadata.uid() == 0)
    }
}
