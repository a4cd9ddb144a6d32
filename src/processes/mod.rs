//! Running programs on this node that call drivers.
//!
//! Any process may be called kubelet. Commands that root runs trust only those that no tenant can have started.

mod arguments;
mod configured;
mod proc;
mod trusted_origin;

pub use configured::configured;

use arguments::Arguments;
use flexvol_storage::host::fs::rooted::Root;
use proc::Proc;
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};
use trusted_origin::{OwnProcess, TrustedOrigin};

/// Kubelet's and the controller manager's default (`pkg/kubelet/apis/config/v1beta1/defaults.go`,
/// `DefaultVolumePluginDir`).
pub const DEFAULT: &str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/";

/// Kubelet's default for --root-dir.
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

    /// Whether the component may run with this origin: kubelet is never in one of its own pods.
    fn may_have_origin(self, origin: TrustedOrigin) -> bool {
        origin == TrustedOrigin::Node || self == Component::ControllerManager
    }
}

/// Programs with kubelet inside: those of k3s and MicroK8s. Kubelet's arguments are invisible there, and k3s hides
/// its own because they contain secrets.
const WITH_KUBELET_INSIDE: [&str; 4] = ["k3s", "k3s-server", "k3s-agent", "kubelite"];

/// A running program that calls drivers.
#[derive(Debug)]
pub struct Process {
    pub component: Component,
    /// The process id, for users and for /proc.
    pub pid: u32,
    /// The plugin directory, as a path in the process's own mount namespace.
    pub plugin_dir: PathBuf,
    /// Kubelet's --root-dir, as a path in the process's own mount namespace.
    pub root_dir: PathBuf,
    proc: Proc,
}

/// Lists the kubelet and controller manager processes in /proc that are known to be the node's.
pub fn processes() -> Vec<Process> {
    let mut found: Vec<Process> = of_the_node()
        .filter_map(|(pid, proc, origin)| {
            let arguments = Arguments::parse(&proc.bytes("cmdline")?)?;
            arguments
                .component
                .may_have_origin(origin)
                .then(|| Process::new(pid, proc, &arguments))
        })
        .collect();
    found.sort_by_key(|process| process.pid);
    found
}

/// Describes a running program with kubelet inside, for users.
pub fn with_kubelet_inside() -> Option<String> {
    of_the_node().find_map(|(pid, proc, origin)| {
        let name = proc.read("comm")?;
        let name = name.trim_end();
        (origin == TrustedOrigin::Node && WITH_KUBELET_INSIDE.contains(&name))
            .then(|| format!("{name} (process {pid})"))
    })
}

/// Iterates over the processes that no tenant can have started.
fn of_the_node() -> impl Iterator<Item = (u32, Proc, TrustedOrigin)> {
    let here = OwnProcess::read();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let proc = Proc::open(pid)?;
        let origin = here.trusted_origin(&proc)?;
        Some((pid, proc, origin))
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

    /// Returns device and inode of the file at a path of this process; `None` if there is none.
    ///
    /// # Errors
    /// The errors of the system calls.
    pub fn identity(&self, path: &Path) -> io::Result<Option<(u64, u64)>> {
        match self.proc.root()?.metadata(path) {
            Ok(metadata) => Ok(Some((metadata.dev(), metadata.ino()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the file at a path of this process, of at most 1 MiB.
    ///
    /// # Errors
    /// The errors of the system calls, including that of a missing file.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.proc.read_own(path)
    }
}

/// Returns kubelet's drop-in files (`--config-dir`, since 1.28), the one with precedence first.
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

/// Deepest level of nested directories that is read.
const DEEPEST: u8 = 8;

/// Collects the files in a directory and below, in order of their names, as kubelet does
/// (`mergeKubeletConfigurations`, cmd/kubelet/app/server.go).
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
