//! The kernel and the root file system in memory of the machine.

use super::packages::{self, unpack};
use crate::command::run;
use anyhow::{Context, Result, ensure};
use std::{
    collections::{HashMap, HashSet},
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

/// Script of the machine's first process.
const INIT: &str = include_str!("init.sh");

/// Kernel modules, all loaded when the machine starts. No RAM disks: every `lvm` would look at each of them.
const MODULES: [&str; 19] = [
    "virtio_pci",
    "virtio_blk",
    "virtio_console",
    "btrfs",
    "crc32c_generic",
    "dm-delay",
    "dm-flakey",
    "dm-log-writes",
    "dm-mirror",
    "dm-mod",
    "dm-raid",
    "dm-snapshot",
    "dm-thin-pool",
    "fuse",
    "loop",
    "overlay",
    "quota_v2",
    "raid1",
    "xfs",
];

/// Files that installation of the packages would create, or that are left out of them.
const FILES: [(&str, &str); 5] = [
    (
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n",
    ),
    ("etc/group", "root:x:0:\ndisk:x:6:\nnogroup:x:65534:\n"),
    (
        "etc/nsswitch.conf",
        "passwd: files\ngroup: files\nhosts: files\n",
    ),
    ("etc/hosts", "127.0.0.1 localhost\n"),
    // Tests make a cramfs of this directory.
    ("usr/share/doc/util-linux/copyright", "see the package\n"),
];

/// The two files that a machine boots from.
#[derive(Clone, Debug)]
pub struct Image {
    pub kernel: PathBuf,
    pub root: PathBuf,
}

impl Image {
    /// Returns the paths of an image in a directory; it may not exist.
    pub fn in_directory(dir: &Path) -> Self {
        Image {
            kernel: dir.join("vmlinuz"),
            root: dir.join("root.cpio"),
        }
    }

    /// Builds the image from packages, which are cached in `kept`; `kernel` is the package that depends on the
    /// kernel's.
    pub fn build(&self, kernel: &str, work: &Path, kept: &Path) -> Result<()> {
        let packages = packages::download(kernel, kept)?;
        let root = work.join("root");
        for dir in ["bin", "sbin", "lib", "lib64"] {
            fs::create_dir_all(root.join("usr").join(dir)).context("make the root")?;
            symlink(Path::new("usr").join(dir), root.join(dir)).context("make the root")?;
        }
        for package in packages.programs.iter().chain([&packages.kernel]) {
            unpack(package, &root)?;
        }
        for dir in ["dev", "mnt", "proc", "root", "run", "sys", "tmp", "var/lib"] {
            fs::create_dir_all(root.join(dir)).context("make the root")?;
        }
        for (name, text) in FILES {
            let file = root.join(name);
            fs::create_dir_all(file.parent().context("a file's directory")?)?;
            fs::write(&file, text).with_context(|| format!("write {name}"))?;
        }
        for (from, to) in [
            ("dash", "usr/bin/sh"),
            ("mawk", "usr/bin/awk"),
            ("/proc/self/mounts", "etc/mtab"),
            ("/run", "var/run"),
        ] {
            if root.join(to).symlink_metadata().is_err() {
                symlink(from, root.join(to)).with_context(|| format!("make {to}"))?;
            }
        }
        let init = root.join("init");
        fs::write(&init, INIT).context("write the first process")?;
        fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
        all_start(&root)?;
        choose_modules(&root)?;
        self.pack(&root)
    }

    /// Moves the kernel out of the root and packs the rest.
    fn pack(&self, root: &Path) -> Result<()> {
        let boot = root.join("boot");
        for entry in fs::read_dir(&boot).context("look for the kernel")? {
            let entry = entry.context("look for the kernel")?;
            if entry.file_name().to_string_lossy().starts_with("vmlinuz-") {
                fs::copy(entry.path(), &self.kernel).context("copy the kernel")?;
            }
        }
        ensure!(self.kernel.is_file(), "the kernel's package has no vmlinuz");
        fs::remove_dir_all(&boot).context("remove what is only for boot loaders")?;
        let mut pack = Command::new("sh");
        pack.args([
            "-c",
            "cd \"$1\" && find . -print0 | cpio --null --create --format newc --owner 0:0 --quiet >\"$2\"",
            "sh",
        ]);
        run(pack.arg(root).arg(&self.root)).context("pack the root")?;
        Ok(())
    }
}

/// Checks that each program finds its libraries: a needed package may have been left out.
fn all_start(root: &Path) -> Result<()> {
    const SCRIPT: &str = "for program in /usr/bin/* /usr/sbin/* /usr/lib/systemd/systemd; do
        [ \"$(head -c 4 $program | tail -c 3)\" != ELF ] || /lib64/ld-linux-x86-64.so.2 --list $program >/dev/null || exit
    done";
    let mut check = Command::new("chroot");
    run(check.arg(root).args(["/bin/sh", "-c", SCRIPT])).context("start the programs")?;
    Ok(())
}

/// Removes all kernel modules except [`MODULES`] and their dependencies.
fn choose_modules(root: &Path) -> Result<()> {
    let all = root.join("usr/lib/modules");
    let mut versions = fs::read_dir(&all).context("list the kernel's modules")?;
    let dir = versions
        .next()
        .context("modules of a kernel")?
        .context("list them")?;
    let index = || {
        let mut depmod = Command::new("chroot");
        run(depmod.arg(root).arg("depmod").arg(dir.file_name())).context("index the modules")
    };
    index()?;
    let read = |name: &str| {
        fs::read_to_string(dir.path().join(name)).with_context(|| format!("read {name}"))
    };
    let wanted = with_dependencies(&read("modules.dep")?, &read("modules.builtin")?)?;
    prune(&dir.path().join("kernel"), &dir.path(), &wanted)?;
    index()?;
    fs::write(root.join("etc/modules"), MODULES.join(" ")).context("note the modules")
}

/// Returns the files of [`MODULES`] and their dependencies, from lines of `modules.dep` such as
/// `kernel/fs/xfs/xfs.ko: kernel/lib/libcrc32c.ko`.
fn with_dependencies(dependencies: &str, builtin: &str) -> Result<HashSet<String>> {
    let lines: HashMap<_, _> = dependencies
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(file, needs)| (name_of(file), (file, needs)))
        .collect();
    let built_in: HashSet<_> = builtin.lines().map(name_of).collect();
    let mut wanted = HashSet::new();
    for module in MODULES {
        let name = module.replace('-', "_");
        if built_in.contains(&name) {
            continue;
        }
        let (file, needs) = lines
            .get(&name)
            .with_context(|| format!("the kernel has no module {module}"))?;
        wanted.insert((*file).to_owned());
        wanted.extend(needs.split_whitespace().map(str::to_owned));
    }
    Ok(wanted)
}

/// Returns a module's name, from its file's; the kernel treats `-` as `_`.
fn name_of(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.split('.').next().unwrap_or(name).replace('-', "_")
}

fn prune(dir: &Path, base: &Path, wanted: &HashSet<String>) -> Result<()> {
    for entry in fs::read_dir(dir).context("list modules")? {
        let path = entry.context("list modules")?.path();
        if path.is_dir() {
            prune(&path, base, wanted)?;
            continue;
        }
        let name = path.strip_prefix(base).context("a module's place")?;
        if !wanted.contains(&*name.to_string_lossy()) {
            fs::remove_file(&path).context("remove a module that is not used")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_bring_what_they_depend_on_and_missing_ones_are_named() {
        let dependencies: String = MODULES
            .iter()
            .filter(|module| **module != "xfs")
            .map(|module| format!("kernel/{module}.ko: kernel/lib/libcrc32c.ko\n"))
            .collect();
        let wanted = with_dependencies(&dependencies, "kernel/fs/xfs/xfs.ko\n").unwrap();
        assert!(wanted.contains("kernel/dm-mod.ko"));
        assert!(wanted.contains("kernel/lib/libcrc32c.ko"));
        assert_eq!(wanted.len(), MODULES.len());
        let error = with_dependencies(&dependencies, "").unwrap_err();
        assert_eq!(error.to_string(), "the kernel has no module xfs");
    }
}
