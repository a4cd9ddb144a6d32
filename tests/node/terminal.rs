//! Text that pods choose and that is shown on root's terminal.

use crate::{
    by_hand::{json_of, stdout_of},
    node::{Backend, Node},
};
use flexvol_testing::{Need, Points, tests};
use std::{
    io::Read,
    path::Path,
    process::{Child, Command, Stdio},
};

tests! {
    "show, list, explain: what a pod calls a directory commands no terminal", &[Need::Root, Need::Tool("unshare", "util-linux"), Need::Tool("mkfs.xfs", "xfsprogs")]
        => commands;
}

/// A process in a mount namespace of its own, as in a container, with a bind mount of a directory at
/// another place.
struct Container(Child);

impl Container {
    fn new(from: &Path, to: &str) -> Self {
        const SCRIPT: &str = "mount -t tmpfs tmpfs /mnt && mkdir -p \"$1\" && mount --bind \"$0\" \"$1\" && echo && exec cat";
        let mut child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT])
            .arg(from)
            .arg(to)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let told = child.stdout.as_mut().unwrap().read_exact(&mut [0]);
        told.expect("mounts of a container");
        Container(child)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

fn commands(points: &Points) {
    const CHOSEN: &str =
        "/mnt/d\u{1b}]0;owned\u{7}\u{1b}[2J\r\u{9b}31m\u{7f}/pods/u\u{1b}c/volumes/x";
    let node = Node::new(Backend::Loop);
    let volume = node.volume("pv");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let container = Container::new(pod.dir(), CHOSEN);
    let about = json_of(&node.driver, &["show", "pv", "-o", "json"]);
    let elsewhere = about["otherMountNamespaces"].as_array().unwrap();
    assert!(
        elsewhere.iter().any(|place| place["path"] == CHOSEN),
        "{about}"
    );
    for verb in [&["show", "pv"][..], &["explain", "pv"], &["list"]] {
        for format in [&[][..], &["-o", "json"]] {
            let text = stdout_of(&node.driver, &[verb, format].concat());
            let command = text.find(|c: char| c.is_control() && c != '\n');
            assert_eq!(command, None, "{verb:?} {format:?}: {text:?}");
            let has_path = verb[0] != "list" || !format.is_empty();
            assert_eq!(text.contains(r"/mnt/d\u001b]0;owned"), has_path, "{text}");
            points.add(1);
        }
    }
    drop(container);
    pod.unmount().success();
    node.delete(&volume).success();
}
