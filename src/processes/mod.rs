//! The programs that call drivers, as they run on this node.
//!
//! Every process may be called kubelet. Verbs that root runs believe those alone that no tenant can have
//! started.

mod arguments;
mod configured;
mod proc;
mod standing;

pub use configured::configured;

use arguments::Arguments;
use flexvol_storage::host::fs::rooted::Root;
use proc::Proc;
use standing::{Here, Standing};
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Kubelet's and the controller manager's default (`pkg/kubelet/apis/config/v1beta1/defaults.go`,
/// `DefaultVolumePluginDir`).
pub const DEFAULT: &str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/";

/// Kubelet's default of --root-dir.
const DEFAULT_ROOT: &str = "/var/lib/kubelet";

/// A program that calls drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    Kubelet,
    ControllerManager,
}

impl Component {
    pub fn as_str(self) -> &'static str {
        match self {
            Component::Kubelet => "kubelet",
            Component::ControllerManager => "kube-controller-manager",
        }
    }

    fn flag(self) -> &'static str {
        match self {
            Component::Kubelet => "volume-plugin-dir",
            Component::ControllerManager => "flex-volume-plugin-dir",
        }
    }

    /// Kubelet is none of the pods that it starts.
    fn can_stand(self, standing: Standing) -> bool {
        standing == Standing::Node || self == Component::ControllerManager
    }
}

/// Programs that kubelet is a part of: those of k3s and MicroK8s. Nobody sees the arguments they give
/// it: k3s hides its own for the secrets in them.
const WITH_KUBELET_INSIDE: [&str; 4] = ["k3s", "k3s-server", "k3s-agent", "kubelite"];

/// A running program that calls drivers.
#[derive(Debug)]
pub struct Process {
    pub component: Component,
    /// Its number, for people and for /proc.
    pub pid: u32,
    /// Where it looks for drivers; a path in its own mount namespace.
    pub plugin_dir: PathBuf,
    /// Where kubelet keeps the directories of pods; a path in its own mount namespace.
    pub root_dir: PathBuf,
    proc: Proc,
}

/// The kubelet and the controller manager that can be seen in /proc, as far as it can be seen that they
/// are the node's.
pub fn processes() -> Vec<Process> {
    let mut found: Vec<Process> = of_the_node()
        .filter_map(|(pid, proc, standing)| {
            let arguments = Arguments::parse(&proc.bytes("cmdline")?)?;
            arguments
                .component
                .can_stand(standing)
                .then(|| Process::new(pid, proc, &arguments))
        })
        .collect();
    found.sort_by_key(|process| process.pid);
    found
}

/// A running program that kubelet is a part of, for people.
pub fn with_kubelet_inside() -> Option<String> {
    of_the_node().find_map(|(pid, proc, standing)| {
        let name = proc.read("comm")?;
        let name = name.trim_end();
        (standing == Standing::Node && WITH_KUBELET_INSIDE.contains(&name))
            .then(|| format!("{name} (process {pid})"))
    })
}

/// The processes that no tenant can have.
fn of_the_node() -> impl Iterator<Item = (u32, Proc, Standing)> {
    let here = Here::look();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let proc = Proc::open(pid)?;
        let standing = here.standing(&proc)?;
        Some((pid, proc, standing))
    })
}

impl Process {
    fn new(pid: u32, proc: Proc, arguments: &Arguments) -> Process {
        let from_files = || {
            let mut files = drop_ins(&proc, arguments);
            files.extend(arguments.value("config").map(PathBuf::from));
            let read = |file: &PathBuf| proc.read_own(file).ok();
            files.iter().find_map(|file| configured(&read(file)?))
        };
        let plugin_dir = arguments
            .value(arguments.component.flag())
            .or_else(from_files);
        Process {
            component: arguments.component,
            pid,
            plugin_dir: plugin_dir.unwrap_or_else(|| DEFAULT.into()).into(),
            root_dir: arguments
                .value("root-dir")
                .unwrap_or_else(|| DEFAULT_ROOT.into())
                .into(),
            proc,
        }
    }

    /// Device and inode of what a path of this process leads to; `None` for nothing.
    ///
    /// # Errors
    /// What the system calls say.
    pub fn identity(&self, path: &Path) -> io::Result<Option<(u64, u64)>> {
        match self.proc.root()?.metadata(path) {
            Ok(metadata) => Ok(Some((metadata.dev(), metadata.ino()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A file at a path of this process, of at most 1 MiB.
    ///
    /// # Errors
    /// What the system calls say, and where there is none.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.proc.read_own(path)
    }
}

/// Kubelet's drop-in files, the one that counts most first (`--config-dir`, 1.28).
fn drop_ins(proc: &Proc, arguments: &Arguments) -> Vec<PathBuf> {
    let Some(dir) = arguments.value("config-dir").map(PathBuf::from) else {
        return Vec::new();
    };
    let mut files = Vec::new();
    if let Ok(root) = proc.root() {
        drop_ins_below(&root, &dir, DEEPEST, &mut files);
    }
    files.reverse();
    files
}

/// Deeper than anybody nests them.
const DEEPEST: u8 = 8;

/// Those in a directory and below, in the order of their names, as kubelet walks (`mergeKubeletConfigurations`,
/// cmd/kubelet/app/server.go).
fn drop_ins_below(root: &Root, dir: &Path, deepest: u8, files: &mut Vec<PathBuf>) {
    let mut names = root.names(dir).unwrap_or_default();
    names.sort();
    for path in names.iter().map(|name| dir.join(name)) {
        match root.metadata(&path) {
            Ok(found) if found.is_dir() && deepest > 0 => {
                drop_ins_below(root, &path, deepest - 1, files);
            }
            Ok(_) if path.extension().is_some_and(|ending| ending == "conf") => files.push(path),
            _ => {}
        }
    }
}
