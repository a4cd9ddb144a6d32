//! The programs that call drivers, as they run on this node.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::OsStrExt,
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
}

/// Programs that kubelet is a part of: those of k3s and MicroK8s. Nobody sees the arguments they give
/// it: k3s hides its own for the secrets in them.
const WITH_KUBELET_INSIDE: [&str; 4] = ["k3s", "k3s-server", "k3s-agent", "kubelite"];

/// A running program that calls drivers.
#[derive(Clone, Debug)]
pub struct Process {
    pub component: Component,
    /// Its number, for people and for /proc.
    pub pid: u32,
    /// Where it looks for drivers; a path in its own mount namespace.
    pub plugin_dir: PathBuf,
    /// Where kubelet keeps the directories of pods; a path in its own mount namespace.
    pub root_dir: PathBuf,
}

/// The kubelet and the controller manager that can be seen in /proc.
pub fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut found: Vec<Process> = entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let arguments = Arguments::parse(&line)?;
            let read = |path: &Path| fs::read(in_root_of(pid, path)).ok();
            let from_files = || {
                let mut files = arguments.drop_ins(pid);
                files.extend(arguments.value("config").map(PathBuf::from));
                files
                    .iter()
                    .find_map(|file| configured(&read(file.as_path())?))
            };
            let plugin_dir = arguments
                .value(arguments.component.flag())
                .or_else(from_files);
            Some(Process {
                component: arguments.component,
                pid,
                plugin_dir: plugin_dir.unwrap_or_else(|| DEFAULT.into()).into(),
                root_dir: arguments
                    .value("root-dir")
                    .unwrap_or_else(|| DEFAULT_ROOT.into())
                    .into(),
            })
        })
        .collect();
    found.sort_by_key(|process| process.pid);
    found
}

/// A running program that kubelet is a part of, for people.
pub fn with_kubelet_inside() -> Option<String> {
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        let name = name.trim_end();
        WITH_KUBELET_INSIDE
            .contains(&name)
            .then(|| format!("{name} (process {pid})"))
    })
}

impl Process {
    /// A path of this process, seen from here.
    pub fn path_from_here(&self, path: &Path) -> PathBuf {
        in_root_of(self.pid, path)
    }
}

fn in_root_of(pid: u32, path: &Path) -> PathBuf {
    let relative = path.strip_prefix("/").unwrap_or(path);
    Path::new("/proc")
        .join(pid.to_string())
        .join("root")
        .join(relative)
}

/// The command line of a program that calls drivers. Paths in it need not be text.
struct Arguments {
    component: Component,
    words: Vec<Vec<u8>>,
}

impl Arguments {
    /// Reads `/proc/PID/cmdline`; `None` for other programs.
    fn parse(line: &[u8]) -> Option<Arguments> {
        let mut words = line.split(|&c| c == 0);
        let first = words.next()?;
        let program = Path::new(OsStr::from_bytes(first)).file_name()?.as_bytes();
        let words: Vec<Vec<u8>> = words.map(<[u8]>::to_vec).collect();
        let component = match program {
            b"kubelet" => Component::Kubelet,
            b"kube-controller-manager" => Component::ControllerManager,
            b"hyperkube" => match words.first()?.as_slice() {
                b"kubelet" => Component::Kubelet,
                b"kube-controller-manager" | b"controller-manager" => Component::ControllerManager,
                _ => return None,
            },
            _ => return None,
        };
        Some(Arguments { component, words })
    }

    /// The value of `--flag value` or `--flag=value`; the last one counts.
    fn value(&self, flag: &str) -> Option<OsString> {
        let mut value = None;
        let mut words = self.words.iter().map(Vec::as_slice);
        while let Some(word) = words.next() {
            let Some(word) = word.strip_prefix(b"--") else {
                continue;
            };
            match word.strip_prefix(flag.as_bytes()) {
                Some([]) => value = words.next(),
                Some([b'=', text @ ..]) => value = Some(text),
                _ => {}
            }
        }
        let value = value.filter(|value| !value.is_empty())?;
        Some(OsStr::from_bytes(value).to_owned())
    }

    /// Kubelet's drop-in files, the one that counts most first (`--config-dir`, 1.28).
    fn drop_ins(&self, pid: u32) -> Vec<PathBuf> {
        let Some(dir) = self.value("config-dir").map(PathBuf::from) else {
            return Vec::new();
        };
        let Ok(entries) = fs::read_dir(in_root_of(pid, &dir)) else {
            return Vec::new();
        };
        let mut files: Vec<PathBuf> = entries
            .flatten()
            .map(|entry| dir.join(entry.file_name()))
            .filter(|path| path.extension().is_some_and(|ending| ending == "conf"))
            .collect();
        files.sort();
        files.reverse();
        files
    }
}

/// `volumePluginDir` in the text of a kubelet configuration, YAML or JSON. It stands at the top
/// level, so in YAML its line begins with it; the value is a plain or quoted scalar. Both are UTF-8,
/// and what is none on another line is not our business.
pub fn configured(text: &[u8]) -> Option<OsString> {
    let text = String::from_utf8_lossy(text);
    configured_in(&text).map(OsString::from)
}

fn configured_in(text: &str) -> Option<String> {
    const KEY: &str = "volumePluginDir";
    if text.trim_start().starts_with('{') {
        let object: serde_json::Value = serde_json::from_str(text).ok()?;
        let value = object.get(KEY)?.as_str()?;
        return (!value.is_empty()).then(|| value.to_owned());
    }
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(KEY)?.trim_start().strip_prefix(':'))?
        .trim();
    let value = match value.chars().next()? {
        quote @ ('"' | '\'') => value[1..].split(quote).next()?,
        _ => value.split(" #").next()?.trim_end(),
    };
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str]) -> Vec<u8> {
        let mut line = Vec::new();
        for word in words {
            line.extend_from_slice(word.as_bytes());
            line.push(0);
        }
        line
    }

    #[test]
    fn flags_are_read_as_go_reads_them() {
        for (words, component, value) in [
            (
                &["/usr/bin/kubelet", "--volume-plugin-dir=/a"][..],
                Component::Kubelet,
                Some("/a"),
            ),
            (
                &["kubelet", "--v", "2", "--volume-plugin-dir", "/a b"],
                Component::Kubelet,
                Some("/a b"),
            ),
            (
                &[
                    "kubelet",
                    "--volume-plugin-dir=/a",
                    "--volume-plugin-dir=/b",
                ],
                Component::Kubelet,
                Some("/b"),
            ),
            (
                &["kubelet", "--flex-volume-plugin-dir=/a"],
                Component::Kubelet,
                None,
            ),
            (
                &["kubelet", "--volume-plugin-dir="],
                Component::Kubelet,
                None,
            ),
            (
                &["kube-controller-manager", "--flex-volume-plugin-dir=/c"],
                Component::ControllerManager,
                Some("/c"),
            ),
            (
                &["/hyperkube", "kubelet", "--volume-plugin-dir=/h"],
                Component::Kubelet,
                Some("/h"),
            ),
        ] {
            let arguments = Arguments::parse(&line(words)).unwrap();
            assert_eq!(arguments.component, component, "{words:?}");
            let found = arguments.value(component.flag());
            assert_eq!(found.as_deref(), value.map(OsStr::new), "{words:?}");
        }
    }

    #[test]
    fn a_path_that_is_no_text_is_read_as_it_is() {
        let line = b"kubelet\0--node-labels=\xff\0--volume-plugin-dir=/a\xfe\0--root-dir\0/b\xfd\0";
        let arguments = Arguments::parse(line).unwrap();
        let value = |flag| arguments.value(flag).unwrap();
        assert_eq!(value("volume-plugin-dir").as_bytes(), b"/a\xfe");
        assert_eq!(value("root-dir").as_bytes(), b"/b\xfd");
    }

    #[test]
    fn other_programs_are_none() {
        for words in [
            &["vim", "kubelet"][..],
            &["kubelet-wrapper"],
            &["hyperkube"],
            &[""],
        ] {
            assert!(Arguments::parse(&line(words)).is_none(), "{words:?}");
        }
        assert!(Arguments::parse(b"").is_none());
    }

    #[test]
    fn kubelets_configuration_is_understood() {
        for (text, value) in [
            (
                "kind: KubeletConfiguration\nvolumePluginDir: /a/b\n",
                Some("/a/b"),
            ),
            ("volumePluginDir: \"/a b\" # why\n", Some("/a b")),
            ("volumePluginDir: '/a'\n", Some("/a")),
            ("volumePluginDir: /a # why\n", Some("/a")),
            ("volumePluginDir : /a\n", Some("/a")),
            ("volumePluginDir: \"\"\n", None),
            ("volumePluginDir:\n", None),
            ("nested:\n  volumePluginDir: /a\n", None),
            ("#volumePluginDir: /a\n", None),
            (r#"{"volumePluginDir":"/j"}"#, Some("/j")),
            (r#"{"volumePluginDir":1}"#, None),
            ("", None),
        ] {
            let found = configured(text.as_bytes());
            assert_eq!(found.as_deref(), value.map(OsStr::new), "{text:?}");
        }
    }

    #[test]
    fn a_comment_that_is_no_text_does_not_hide_what_kubelet_is_told() {
        let text = b"# caf\xe9\nvolumePluginDir: /a\n";
        assert_eq!(configured(text).as_deref(), Some(OsStr::new("/a")));
    }
}
