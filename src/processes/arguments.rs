//! Command lines of programs that call drivers.

use super::Component;
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::Path,
};

/// The command line of a program that calls drivers. Its paths need not be UTF-8.
pub struct Arguments {
    pub component: Component,
    words: Vec<Vec<u8>>,
}

impl Arguments {
    /// Parses `/proc/PID/cmdline`; `None` for other programs.
    pub fn parse(line: &[u8]) -> Option<Arguments> {
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

    /// Returns the value of `--flag value` or `--flag=value`; the last one wins.
    pub fn value(&self, flag: &str) -> Option<OsString> {
        let mut value = None;
        let mut words = self.words.iter().map(Vec::as_slice);
        while let Some(word) = words.next() {
            let Some(word) = word.strip_prefix(b"--") else {
                continue;
            };
            // Kubernetes' programs accept `_` for `-` in a flag's name (`WordSepNormalizeFunc`,
            // component-base/cli/flag).
            let (name, rest) = word.split_at(word.len().min(flag.len()));
            let name: Vec<u8> = name
                .iter()
                .map(|c| if *c == b'_' { b'-' } else { *c })
                .collect();
            match (name == flag.as_bytes()).then_some(rest) {
                Some([]) => value = words.next(),
                Some([b'=', text @ ..]) => value = Some(text),
                _ => {}
            }
        }
        let value = value.filter(|value| !value.is_empty())?;
        Some(OsStr::from_bytes(value).to_owned())
    }
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
                &["kubelet", "--volume_plugin_dir=/a_b"],
                Component::Kubelet,
                Some("/a_b"),
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
}
