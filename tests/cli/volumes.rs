//! The verbs about volumes, as far as they work without storage.

use crate::flexvol;
use flexvol_testing::{Points, tests};
use std::fs;

tests! {
    "volumes: what is missing or malformed is named, with exit code 2" => usage;
    "volumes: what cannot be done is one line on standard error, with exit code 1" => failures;
    "volumes: the help tells units and defaults" => help;
}

const HANDLE: &str = "0123456789abcdef0123456789abcdef";

fn said(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = flexvol().args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn usage(points: &Points) {
    for (arguments, expected) in [
        (&["create"][..], "--size"),
        (
            &["create", "a/b", "--size", "1Gi"],
            "is not a DNS subdomain",
        ),
        (&["create", "a", "--size", "-1"], "--size"),
        (&["create", "a", "--size=-1Gi"], "is negative"),
        (&["create", "a", "--size", "1GiB"], "is not a quantity"),
        (&["create", "a", "--size", "1Gi", "--fs", "ntfs"], "xfs"),
        (
            &["create", "a", "--size", "1Gi", "--driver", "disk"],
            "vendor/driver",
        ),
        (
            &["create", "a", "--size", "1Gi", "--namespace", "a:fs=x"],
            "a namespace is",
        ),
        (&["adopt", "file"], "--name"),
        (&["list", "--output", "xml"], "--output"),
        (&["list", "extra"], "extra"),
        (&["show"], "HANDLE"),
        (&["explain", "a", "--size", "ten"], "is not a quantity"),
        (&["gc", "now"], "now"),
    ] {
        let (code, out, err) = said(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {out}{err}");
        assert_eq!(out, "", "{arguments:?}");
        assert!(err.contains(expected), "{arguments:?}: {err}");
        points.add(1);
    }
}

fn failures(points: &Points) {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let missing = format!(
        "backend = \"loop\"\n[pools.default]\npath = {:?}\n",
        dir.path().join("no")
    );
    let nowhere = write("nowhere.toml", &missing);
    let mistaken = write("mistaken.toml", "[pools.default]\npath = 1\n");
    let strange = write("strange.toml", "backend = \"tape\"\n");
    let create = ["create", "a", "--size", "1Gi", "--config", &nowhere];
    for (arguments, expected) in [
        (&["list", "--config", &nowhere][..], "pool default"),
        (
            &["list", HANDLE, "--config", &nowhere],
            "no volume 0123456789abcdef0123456789abcdef was found",
        ),
        (&["show", "a", "--config", &nowhere], "not mounted"),
        (
            &["show", "A", "--config", &nowhere],
            "is not a DNS subdomain",
        ),
        (
            &["explain", "/nowhere/a", "--config", &nowhere],
            "not mounted",
        ),
        (&["gc", "--config", &nowhere], "pool default"),
        (
            &["list", "--pool", "nope", "--config", &nowhere],
            "no pool \"nope\"; pools: default",
        ),
        (&["list", "--config", &mistaken], "line 2"),
        (
            &["list", "--config", &strange],
            "there is no backend \"tape\"",
        ),
        (&["list", "--config", "/nowhere.toml"], "/nowhere.toml"),
        (&create, "say --driver"),
    ] {
        let (code, _, err) = said(arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {err}");
        assert_eq!(err.lines().count(), 1, "{arguments:?}: {err}");
        assert!(err.starts_with("flexvol: "), "{err}");
        assert!(err.contains(expected), "{arguments:?}: {err}");
        points.add(1);
    }
}

fn help(points: &Points) {
    for (verb, expected) in [
        ("adopt", "[default: the image's, in whole MiB]"),
        ("create", "[default: default]"),
        ("explain", "[default: the size that was asked for last]"),
        ("gc", "--dry-run"),
        ("list", "[default: table]"),
        ("show", "[default: table]"),
    ] {
        let (code, out, err) = said(&[verb, "--help"]);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{verb}");
        assert!(out.contains(expected), "{verb}: {out}");
        points.add(1);
    }
}
