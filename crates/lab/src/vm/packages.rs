//! Debian packages that the machine consists of, with their dependencies.

use crate::command::run;
use anyhow::{Context, Result, bail, ensure};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The kernel: a package that depends on the newest one.
pub const KERNEL: &str = "linux-image-cloud-amd64";

/// A newer kernel in Debian, which can protect mounted devices from writers.
pub const NEWER_KERNEL: &str = "linux-image-6.12-cloud-amd64";

/// The programs.
const PROGRAMS: [&str; 20] = [
    "bash",
    "btrfs-progs",
    "coreutils",
    "dash",
    "diffutils",
    "dmsetup",
    "e2fsprogs",
    "findutils",
    "grep",
    "kmod",
    "lvm2",
    "mawk",
    "mount",
    "sed",
    "strace",
    "systemd",
    "tar",
    "thin-provisioning-tools",
    "util-linux",
    "xfsprogs",
];

/// Prefixes of packages that others depend on and nothing here uses: the interpreter of `xfs_scrub_all` with its
/// dependencies, and packages needed only for installation.
const UNUSED: [&str; 22] = [
    "base-files",
    "debconf",
    "dpkg",
    "gcc-12-base",
    "libaudit-common",
    "libdb5",
    "libgssapi",
    "libicu",
    "libk5crypto",
    "libkeyutils",
    "libkrb5",
    "libnsl",
    "libpython3",
    "libsqlite3",
    "libtirpc",
    "linux-base",
    "lsb-base",
    "media-types",
    "ncurses",
    "python3",
    "readline-common",
    "sysvinit-utils",
];

/// Files left out of the packages: nothing here uses them, or they need [`UNUSED`] packages.
const UNREAD: [&str; 5] = [
    "./usr/share/*",
    "./usr/lib/python3*",
    "./usr/lib/*/gconv",
    "./usr/sbin/xfs_scrub*",
    "./boot/System.map-*",
];

/// Downloaded packages.
#[derive(Debug)]
pub struct Packages {
    pub kernel: PathBuf,
    pub programs: Vec<PathBuf>,
}

/// Downloads the packages that `to` does not have yet.
pub fn download(kernel: &str, to: &Path) -> Result<Packages> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "the machine is one with amd64, and so must be this one"
    );
    fs::create_dir_all(to).context("make the directory of packages")?;
    let mut update = Command::new("apt-get");
    run(update.args(["-qq", "update"])).context("update the lists of packages")?;
    let kernel = depended(kernel, to)?
        .into_iter()
        .find(|package| package.is_kernel() && package.name != kernel)
        .with_context(|| format!("package {kernel} depends on no kernel"))?;
    let mut programs = Vec::new();
    for name in depended(&PROGRAMS.join(" "), to)? {
        if !UNUSED.iter().any(|unused| name.name.starts_with(unused)) {
            programs.push(name);
        }
    }
    let missing: Vec<_> = programs
        .iter()
        .chain([&kernel])
        .filter(|package| package.file(to).is_err())
        .map(|package| format!("{}={}", package.name, package.version))
        .collect();
    if !missing.is_empty() {
        let mut download = Command::new("apt-get");
        download.current_dir(to).args(["-qq", "download"]);
        run(download.args(missing)).context("download packages")?;
    }
    Ok(Packages {
        kernel: kernel.file(to)?,
        programs: programs
            .iter()
            .map(|package| package.file(to))
            .collect::<Result<_>>()?,
    })
}

struct Package {
    name: String,
    version: String,
}

impl Package {
    fn is_kernel(&self) -> bool {
        let rest = self.name.strip_prefix("linux-image-");
        rest.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    }

    /// Returns the package's file, named by apt: a colon in the version is written `%3a`.
    fn file(&self, dir: &Path) -> Result<PathBuf> {
        let version = self.version.replace(':', "%3a");
        let start = format!("{}_{version}_", self.name);
        for entry in fs::read_dir(dir).context("list the packages")? {
            let entry = entry.context("list the packages")?;
            let name = entry.file_name();
            if name.to_string_lossy().starts_with(&start) {
                return Ok(entry.path());
            }
        }
        bail!("package {} {} was not downloaded", self.name, self.version)
    }
}

/// Returns these packages and all their dependencies, as if nothing were installed.
fn depended(names: &str, work: &Path) -> Result<Vec<Package>> {
    let nothing = work.join("nothing-is-installed");
    fs::write(&nothing, "").context("write an empty list of packages")?;
    let mut plan = Command::new("apt-get");
    plan.arg("-o")
        .arg(format!("Dir::State::status={}", nothing.display()))
        .args(["install", "--simulate", "--no-install-recommends"])
        .args(names.split(' '));
    let plan = run(&mut plan).with_context(|| format!("find what {names} depends on"))?;
    Ok(plan.lines().filter_map(planned).collect())
}

/// Returns name and version in `Inst bash (5.2.15-2+b13 Debian:12.15/oldstable [amd64])`.
fn planned(line: &str) -> Option<Package> {
    let (name, rest) = line.strip_prefix("Inst ")?.split_once(" (")?;
    let (version, _) = rest.split_once(' ')?;
    Some(Package {
        name: name.to_owned(),
        version: version.to_owned(),
    })
}

/// Unpacks the files of a package into a directory, following symbolic links there.
pub fn unpack(package: &Path, into: &Path) -> Result<()> {
    let mut files = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(package)
        .stdout(Stdio::piped())
        .spawn()
        .context("start dpkg-deb")?;
    let archive = files.stdout.take().context("a pipe from dpkg-deb")?;
    let exclude = UNREAD.map(|path| format!("--exclude={path}"));
    let unpacked = Command::new("tar")
        .arg("-C")
        .arg(into)
        .args(["-x", "--keep-directory-symlink"])
        .args(exclude)
        .stdin(archive)
        .status()
        .context("start tar")?;
    let read = files.wait().context("wait for dpkg-deb")?;
    ensure!(
        unpacked.success() && read.success(),
        "unpack {}: dpkg-deb {read}, tar {unpacked}",
        package.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apts_plan_names_packages_and_versions() {
        let line = "Inst mount (2.38.1-5+deb12u3 Debian:12.15/oldstable [amd64]) []";
        let package = planned(line).unwrap();
        assert_eq!(
            (&*package.name, &*package.version),
            ("mount", "2.38.1-5+deb12u3")
        );
        assert!(!package.is_kernel());
        assert!(planned("Conf mount (2.38.1-5+deb12u3 Debian:12.15/oldstable [amd64])").is_none());
        let line = "Inst linux-image-6.1.0-1-cloud-amd64 (6.1.4-1 Debian:12/stable [amd64])";
        assert!(planned(line).unwrap().is_kernel());
    }
}
