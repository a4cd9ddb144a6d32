//! Events that kubelet's watcher gets from installing and uninstalling.

use super::{NAME, Node, stderr, stdout};
use crate::flexvol;
use assert_cmd::assert::OutputAssertExt;
use flexvol_testing::{Need, Points, tests};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::{fs, os::unix::fs::MetadataExt, path::Path};

tests! {
    "install: kubelet sees one event, of a complete driver", &[Need::Root] => first_installation;
    "install: a second time changes nothing", &[Need::Root] => second_time;
    "install: the executable is replaced last, and again when attach changes", &[Need::Root]
        => upgrade;
    "uninstall: removes what install wrote, and nothing else", &[Need::Root] => uninstall;
}

/// Names and kinds of the events in a directory that kubelet does not ignore, since this was made.
struct Watcher(Inotify);

impl Watcher {
    fn of(directory: &Path) -> Self {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK).expect("inotify");
        // The events that kubelet watches (github.com/fsnotify/fsnotify, inotify backend).
        let events = AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_DELETE;
        inotify.add_watch(directory, events).expect("watch");
        Watcher(inotify)
    }

    fn seen(&self) -> Vec<(String, AddWatchFlags)> {
        let mut seen = Vec::new();
        while let Ok(events) = self.0.read_events() {
            for event in events {
                let name = event.name.unwrap_or_default().into_string().unwrap();
                if !name.is_empty() && !name.starts_with('.') {
                    seen.push((name, event.mask & !AddWatchFlags::IN_ISDIR));
                }
            }
        }
        seen
    }
}

fn first_installation(_: &Points) {
    let node = Node::new();
    let watcher = Watcher::of(&node.plugins());
    node.install("backend = \"loop\"\n").success();
    let once = ("example.net~flexvol".to_owned(), AddWatchFlags::IN_MOVED_TO);
    assert_eq!(watcher.seen(), [once]);
    assert_eq!(node.names(), [".flexvol.init", ".flexvol.toml", "flexvol"]);
    for (path, mode) in [
        (node.home(), 0o755),
        (node.file("flexvol"), 0o755),
        (node.file(".flexvol.toml"), 0o644),
        (node.file(".flexvol.init"), 0o644),
    ] {
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.mode() & 0o7777, mode, "{}", path.display());
        assert_eq!(metadata.uid(), 0);
    }
    let line = fs::read_to_string(node.file(".flexvol.init")).unwrap();
    assert_eq!(node.init(), line);
    assert!(line.contains("\"attach\":false"), "{line}");
}

fn second_time(_: &Points) {
    let node = Node::new();
    node.install("attach = false\n").success();
    let before = node.identities();
    let watcher = Watcher::of(&node.home());
    let again = node.install("attach = false\n").success();
    assert!(stdout(&again).starts_with("unchanged: "), "{again}");
    // Without a new configuration the existing one stays.
    let again = node.run("install", &[]).success();
    assert!(stdout(&again).starts_with("unchanged: "), "{again}");
    assert_eq!(node.identities(), before);
    assert_eq!(watcher.seen(), []);
}

fn upgrade(points: &Points) {
    let node = Node::new();
    node.install("log = \"info\"\n").success();
    let replaced = ("flexvol".to_owned(), AddWatchFlags::IN_MOVED_TO);
    let watcher = Watcher::of(&node.home());

    // A configuration that does not change the reply to init causes no event.
    let assert = node.install("growth = \"offline\"\n").success();
    assert!(
        stdout(&assert).ends_with("written: .flexvol.toml\n"),
        "{assert}"
    );
    assert_eq!(watcher.seen(), []);
    points.add(1);

    // Attach changes it: the executable is replaced although it is the same.
    let assert = node.install("attach = true\n").success();
    let written = "written: .flexvol.toml, .flexvol.init, flexvol\n";
    assert!(stdout(&assert).ends_with(written), "{assert}");
    assert_eq!(watcher.seen(), std::slice::from_ref(&replaced));
    assert!(node.init().contains("\"attach\":true"));
    points.add(1);

    // A different executable, as after an upgrade.
    fs::write(node.file("flexvol"), "another one").unwrap();
    watcher.seen();
    node.run("install", &[]).success();
    assert_eq!(watcher.seen(), [replaced]);
    assert!(node.init().contains("\"attach\":true"));
    assert_eq!(node.names(), [".flexvol.init", ".flexvol.toml", "flexvol"]);
}

fn uninstall(points: &Points) {
    let node = Node::new();
    node.install("log = \"info\"\n").success();
    fs::write(node.file("vendors-own"), "").unwrap();
    let assert = node.run("uninstall", &[]).failure().code(1);
    assert!(stderr(&assert).contains("vendors-own"), "{assert}");
    assert!(node.file("flexvol").exists());
    fs::remove_file(node.file("vendors-own")).unwrap();
    points.add(1);

    let watcher = Watcher::of(&node.home());
    node.run("uninstall", &[]).success();
    let removed = ("flexvol".to_owned(), AddWatchFlags::IN_DELETE);
    assert_eq!(watcher.seen(), [removed]);
    assert_eq!(fs::read_dir(node.plugins()).unwrap().count(), 0);
    let mut again = flexvol();
    again.args(["uninstall", "--driver", NAME, "--plugin-dir"]);
    let again = again.arg(node.plugins()).assert().success();
    assert!(stdout(&again).contains("is not installed"), "{again}");
    points.add(1);

    // A driver of another vendor under this name.
    fs::create_dir(node.home()).unwrap();
    fs::write(node.file("flexvol"), "#!/bin/sh\n").unwrap();
    let assert = node.run("uninstall", &[]).failure().code(1);
    assert!(
        stderr(&assert).contains("not installed by flexvol"),
        "{assert}"
    );
}
