//! Invalid input of callers and users: each gets one failure with a remedy, and changes nothing.

pub mod node;
pub mod volume;

use crate::{
    node::{Backend, MIB, Node, UID},
    story::stories,
};
use flexvol_testing::{Baseline, Call, Driver, PersistentVolume, Points, json, request};
use std::{collections::BTreeMap, ffi::OsStr, fs, os::unix::ffi::OsStrExt};

stories! {
    STORIES:
    "arguments that mean nothing change nothing", [loop btrfs] => arguments;
    "names and sizes that cannot be are refused", [loop btrfs] => names_and_sizes;
    "another tenant's volume is not mounted", [loop btrfs] => tenants;
    "a volume is not deleted under another name than its own",
        [loop sparse_loop xfs ext4 btrfs hello_block hello_directory lvm thin_lvm] => deleted_as_another;
}

impl Node {
    /// A volume that was mounted once, and so is formatted.
    fn formatted(&self, name: &str) -> PersistentVolume {
        let volume = self.volume(name);
        self.pod(&volume).mount("rw").success();
        self.pod(&volume).unmount().success();
        volume
    }

    /// Checks that the call fails with each of `words`, and leaves everything unchanged.
    #[track_caller]
    fn refuses<S: AsRef<str>>(&self, argv: &[S], words: &[&str], points: &Points) {
        let argv: Vec<_> = argv.iter().map(AsRef::as_ref).collect();
        self.refuses_in(|driver| driver.call(&argv), words, points);
    }

    #[track_caller]
    fn refuses_in(&self, call: impl FnOnce(&Driver) -> Call, words: &[&str], points: &Points) {
        let before = Baseline::of(&self.sandbox);
        let call = call(&self.driver);
        says(&call, words);
        let nothing = before.difference(&Baseline::of(&self.sandbox));
        assert!(nothing.is_empty(), "{call}\n{nothing}");
        points.add(1);
    }
}

#[track_caller]
fn says(call: &Call, words: &[&str]) {
    let message = call.failure();
    for word in words {
        assert!(message.contains(word), "no {word:?}: {call}");
    }
    for private in ["/run/", "/dev/", "/proc/", "panicked"] {
        assert!(
            !message.contains(private),
            "{private:?} is for the log: {call}"
        );
    }
}

fn arguments(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    let volume = node.volume("pv");
    let good = volume.json("rw");
    let dir = node.sandbox.path("dir");
    fs::create_dir(&dir).unwrap();
    let dir = dir.to_str().unwrap();
    let lines: &[&[&str]] = &[
        &["mount"],
        &["mount", dir],
        &["mount", dir, &good, "extra"],
        &["mount", "relative", &good],
        &["mount", "", &good],
        &["init", "extra"],
        &["unmount"],
        &["unmount", dir, "extra"],
        &["unmount", "relative"],
        &["expandfs", &good, "", dir, "1"],
        &["expandfs", &good, "", dir, "1", "1", "extra"],
        &["expandfs", "1", "1", "1"],
        &["provision"],
        &["delete", &good, "extra"],
        &["attach", &good],
    ];
    for line in lines {
        node.refuses(line, &[], points);
    }
    let name = r#""kubernetes.io/pvOrVolumeName":"pv""#;
    for text in [
        String::new(),
        "{".to_owned(),
        "[]".to_owned(),
        "null".to_owned(),
        "\"text\"".to_owned(),
        format!("{{{name}}} trailing"),
        format!("{{{name},{name}}}"),
        format!(r#"{{{name},"requestBytes":314572800}}"#),
        format!(r#"{{{name},"pool":null}}"#),
        format!(r#"{{{name},"pool":{{"a":"b"}}}}"#),
        format!(r#"{{{name},"pool":true}}"#),
    ] {
        for callout in ["provision", "delete"] {
            node.refuses(&[callout, &text], &[], points);
        }
        node.refuses(&["mount", dir, &text], &[], points);
    }
    let colour = volume.json_with("rw", &[("colour", "red"), ("requestBytes", "314572800")]);
    node.refuses(&["mount", dir, &colour], &["colour"], points);
    node.refuses(&["provision", &colour], &["colour"], points);
    let invalid = OsStrExt::from_bytes(b"{\"kubernetes.io/pvOrVolumeName\":\"\xff\"}");
    let call = node.driver.call(&[OsStr::new("provision"), invalid]);
    says(&call, &[]);
}

fn names_and_sizes(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    let long = "a".repeat(254);
    for name in [
        "",
        ".",
        "..",
        "../pv",
        "a/b",
        "/etc/shadow",
        "-pv",
        "--help",
        "pv\n",
        "pv\0",
        "pv\u{202e}",
        "PV",
        "p v",
        "pv;reboot",
        "$(reboot)",
        &long,
    ] {
        node.refuses(&["provision", &request(name, node.size())], &[], points);
        node.refuses(&["delete", &request(name, node.size())], &[], points);
    }
    for size in [
        "0",
        "-1",
        "-314572800",
        "18446744073709551615",
        "18446744073709551616",
        "1e30",
        "9223372036854775807",
        "nonsense",
        "",
        "0x10",
        "314572800.5x",
        "1 Gi",
    ] {
        let asked = json([
            ("kubernetes.io/pvOrVolumeName", "pv"),
            ("requestBytes", size),
        ]);
        node.refuses(&["provision", &asked], &[], points);
    }
    let volume = node.formatted("real");
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    let smaller = pod.expand_arguments(node.size() - 1, node.size());
    let has = format!("{}Mi", node.size() / MIB);
    node.refuses(&smaller, &[&has], points);
    for size in ["0", "-1", "99999999999999999999", "", "1Gi", "0x1"] {
        let mut line = pod.expand_arguments(node.size(), node.size());
        size.clone_into(&mut line[4]);
        node.refuses(&line, &[], points);
    }
    let wanted = pod.expand_arguments(1 << 50, node.size());
    node.refuses(&wanted, &["1Pi"], points);
    pod.unmount().success();
    let filesystem = json([
        ("kubernetes.io/fsType", "vfat"),
        ("kubernetes.io/pvOrVolumeName", "other"),
        ("requestBytes", "314572800"),
    ]);
    node.refuses(&["provision", &filesystem], &["vfat"], points);
}

fn tenants(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    let volume = node.formatted("pv");
    let dir = node.sandbox.path("dir");
    fs::create_dir(&dir).unwrap();
    let dir = dir.to_str().unwrap();
    let mine = pod_of("default");
    let theirs = pod_of("theirs");
    node.refuses(
        &["mount", dir, &volume.json_with("rw", &theirs)],
        &[],
        points,
    );
    // Without a pod the claim's namespace cannot be compared.
    node.refuses(&["mount", dir, &volume.json("rw")], &[], points);
    let guessed = |handle: &str| {
        let options = BTreeMap::from([
            ("handle".to_owned(), handle.to_owned()),
            ("pool".to_owned(), "default".to_owned()),
        ]);
        PersistentVolume {
            options,
            ..volume.clone()
        }
    };
    let zeros = "0".repeat(32);
    let longer = format!("{}0", volume.handle());
    let shouted = volume.handle().to_uppercase();
    let climbing = format!("../volumes/{}", volume.id());
    for handle in [
        &zeros,
        "",
        "..",
        &longer,
        &shouted,
        &climbing,
        &volume.handle()[..31],
    ] {
        let line = ["mount", dir, &guessed(handle).json_with("rw", &mine)];
        node.refuses(&line, &[], points);
    }
    // A pod's author can choose the name of an inline volume, but does not know its handle.
    let mut named = volume.clone();
    named.options.remove("handle");
    node.refuses(&["mount", dir, &named.json_with("rw", &mine)], &[], points);
    let call = node
        .driver
        .call(&["mount", dir, &named.json_with("rw", &theirs)]);
    assert!(!call.failure().contains(volume.handle()), "{call}");
}

/// The members of `mount` for a pod in this namespace.
fn pod_of(namespace: &str) -> [(&str, &str); 3] {
    [
        ("kubernetes.io/pod.name", "pod"),
        ("kubernetes.io/pod.namespace", namespace),
        ("kubernetes.io/pod.uid", UID),
    ]
}

/// Whoever may order deletions, and knows the handle of a volume that has to stay, orders it for one that may go.
fn deleted_as_another(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    let volume = node.volume("pv");
    let (pod, content) = node.written(&volume);
    let other = node.volume("other");
    let called = |name| volume.json_with("rw", &[("kubernetes.io/pvOrVolumeName", name)]);
    let handle = ("handle", volume.handle());
    let by_handle = |name| json([handle, ("kubernetes.io/pvOrVolumeName", name)]);
    for name in ["other", "unknown"] {
        let words = [name, "made under another name", "`flexvol list`"];
        for told in [called(name), by_handle(name)] {
            node.refuses(&["delete", &told], &words, points);
        }
    }
    pod.mount("rw").success();
    assert_eq!(fs::read(pod.dir().join("file")).unwrap(), content);
    pod.unmount().success();
    // Nobody is kept from what is theirs.
    node.delete(&other).success();
    node.driver.call(&["delete", &json([handle])]).success();
    // It is gone, whatever it was called.
    node.driver.call(&["delete", &called("other")]).success();
    points.add(3);
}
