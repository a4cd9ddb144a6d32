mod any;

use super::*;
use crate::{ErrorKind, Result};
use any::{any_argument, callout};
use proptest::prelude::*;
use std::os::unix::ffi::OsStrExt;

const VOLUME: &str = r#"{"kubernetes.io/fsType":"xfs","kubernetes.io/pvOrVolumeName":"v1","kubernetes.io/readwrite":"rw","pool":"fast"}"#;

fn argv(arguments: &[&str]) -> Vec<OsString> {
    arguments.iter().map(Into::into).collect()
}

fn parse(arguments: &[&str]) -> Result<Callout> {
    Callout::parse(&argv(arguments))
}

fn volume_of(json: &str) -> Result<Volume> {
    match parse(&["delete", json])? {
        Callout::Delete { volume } => Ok(volume),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_layout_since_kubernetes_1_6_is_read() {
    for layout in [
        &["init"][..],
        &["getvolumename", VOLUME],
        &["attach", VOLUME, "node-1.example"],
        &["waitforattach", "", VOLUME],
        &["isattached", VOLUME, "node-1.example"],
        &["detach", "v1", "node-1.example"],
        &["mountdevice", "/var/lib/kubelet/a b", "/dev/loop3", VOLUME],
        &["unmountdevice", "/var/lib/kubelet/x"],
        &["mount", "/var/lib/kubelet/x", VOLUME],
        &["unmount", "/var/lib/kubelet/x"],
        &["expandvolume", VOLUME, "/var/lib/kubelet/x", "2", "1"],
        &["expandvolume", "2", "1", VOLUME],
        &["expandfs", VOLUME, "", "/var/lib/kubelet/x", "2", "1"],
        &["expandfs", "2", "2", VOLUME],
        &["delete", VOLUME],
        &["capacity", "{\"pool\":\"fast\"}"],
        &["waitfordetach"],
    ] {
        let callout = parse(layout).unwrap();
        assert_eq!(callout.to_argv(), argv(layout));
        let known = Callout::NAMES.contains(&layout[0]);
        assert_eq!(callout.name(), if known { layout[0] } else { "unknown" });
    }
}

#[test]
fn missing_and_extra_arguments_are_refused() {
    for layout in [
        &["init"][..],
        &["getvolumename", VOLUME],
        &["attach", VOLUME, "node"],
        &["waitforattach", "", VOLUME],
        &["isattached", VOLUME, "node"],
        &["detach", "v1", "node"],
        &["mountdevice", "/x", "", VOLUME],
        &["unmountdevice", "/x"],
        &["mount", "/x", VOLUME],
        &["unmount", "/x"],
        &["expandvolume", VOLUME, "/x", "2", "1"],
        &["expandvolume", "2", "1", VOLUME],
        &["expandfs", VOLUME, "", "/x", "2", "1"],
        &["expandfs", "2", "1", VOLUME],
        &[
            "provision",
            r#"{"kubernetes.io/pvOrVolumeName":"v","requestBytes":"1"}"#,
        ],
        &["delete", VOLUME],
        &["capacity", "{}"],
    ] {
        assert!(parse(layout).is_ok(), "{layout:?}");
        for extra in ["", "x", "{}", "1", "/x"] {
            assert!(
                parse(&[layout, &[extra]].concat()).is_err(),
                "{layout:?} {extra:?}"
            );
        }
        for length in 1..layout.len() {
            let error = parse(&layout[..length]).unwrap_err();
            assert!(error.to_string().starts_with(layout[0]), "{error}");
        }
    }
    assert!(parse(&[]).is_err());
}

#[test]
fn ambiguous_expansions_are_refused() {
    for arguments in [
        &["expandvolume", "1", "2", "{}", "{}"][..],
        &["expandvolume", "/x", "{}", "2", "1"],
        &["expandvolume", "{}", "/x", "2"],
        &["expandfs", "{}", "/x", "2", "1"],
        &["expandfs", "{}", "2", "1"],
        &["expandfs", "/x", "", "{}", "2", "1"],
        &["expandfs", "{}", "", "", "2", "1"],
        &["expandfs", " {}", "", "/x", "2", "1"],
    ] {
        assert!(parse(arguments).is_err(), "{arguments:?}");
    }
}

#[test]
fn sizes_are_plain_positive_bytes_that_never_fall() {
    for (new, old) in [
        ("0", "0"),
        ("1", "0"),
        ("-1", "1"),
        ("+2", "1"),
        ("2.0", "1"),
        ("2Gi", "1"),
        ("1e9", "1"),
        ("", "1"),
        (" 2", "1"),
        ("1", "2"),
        ("9223372036854775808", "1"),
        ("18446744073709551616", "1"),
    ] {
        assert!(
            parse(&["expandfs", "{}", "", "/x", new, old]).is_err(),
            "{new} {old}"
        );
        assert!(
            parse(&["expandvolume", new, old, "{}"]).is_err(),
            "{new} {old}"
        );
    }
    assert!(parse(&["expandfs", "{}", "", "/x", "9223372036854775807", "1"]).is_ok());
}

#[test]
fn directories_are_absolute_and_plain() {
    let long = format!("/{}", "a".repeat(4096));
    for dir in [
        "",
        "/",
        "x",
        "./x",
        "~",
        "/..",
        "/a/..",
        "/a/../b",
        "/a\nb",
        "/a\tb",
        "/a\u{9b}b",
        "-x",
        &long,
    ] {
        assert!(parse(&["unmount", dir]).is_err(), "{dir:?}");
    }
    for dir in ["/a", "/a b", "/a..b", "/a/", "/a/./b", "/..a"] {
        assert!(parse(&["unmount", dir]).is_ok(), "{dir:?}");
    }
}

#[test]
fn names_nodes_and_devices_are_checked() {
    for name in ["", "-v", "../v", "a/b", "V", "v\n"] {
        assert!(parse(&["detach", name, "node"]).is_err(), "{name:?}");
        assert!(parse(&["detach", "v", name]).is_err(), "{name:?}");
    }
    for device in ["-f", "/dev/a\nb"] {
        assert!(
            parse(&["waitforattach", device, "{}"]).is_err(),
            "{device:?}"
        );
    }
}

#[test]
fn the_json_is_one_flat_object_of_strings() {
    let deep = "[".repeat(1000);
    let long = format!("{{\"a\":\"{}\"}}", "b".repeat(128 << 10));
    for json in [
        "",
        "{",
        "[]",
        "null",
        "\"{}\"",
        "{} {}",
        "{'a':'b'}",
        r#"{"a":hunter2}"#,
        r#"{"a":5}"#,
        r#"{"a":true}"#,
        r#"{"a":null}"#,
        r#"{"a":["hunter2"]}"#,
        r#"{"a":{"b":"hunter2"}}"#,
        r#"{"a":"hunter2","a":"hunter2"}"#,
        r#"{"a":"hunter2","\u0061":"hunter2"}"#,
        r#"{"a\u0000":"hunter2"}"#,
        r#"{"a":"hunter2\u0000"}"#,
        r#"{"a":"hunter2\r"}"#,
        r#"{"a":"hunter2\u001b"}"#,
        r#"{"kubernetes.io/readwrite":"rw\n"}"#,
        r#"{"kubernetes.io/readwrite":"hunter2"}"#,
        r#"{"kubernetes.io/pvOrVolumeName":"../x"}"#,
        r#"{"kubernetes.io/pvOrVolumeName":""}"#,
        r#"{"kubernetes.io/fsType":"../hunter2"}"#,
        r#"{"kubernetes.io/pvc.namespace":"a/b"}"#,
        &deep,
        &long,
    ] {
        let error = volume_of(json).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(!error.report().contains("hunter2"), "{error}");
    }
}

#[test]
fn reserved_keys_are_no_options() {
    let volume = volume_of(
        r#"{"kubernetes.io/fsType":"","kubernetes.io/readwrite":"ro","kubernetes.io/new":"1",
            "Kubernetes.IO/x":"1","a.k8s.io/x":"1","notk8s.io/x":"1","requestBytes":"1"}"#,
    )
    .unwrap();
    assert!(volume.read_only && volume.filesystem.is_none() && volume.name.is_none());
    let keys: Vec<_> = volume.options.iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["notk8s.io/x", "requestBytes"]);
}

#[test]
fn mount_is_told_of_pod_group_and_secrets() {
    let mount = |json: &str| -> Result<MountRequest> {
        match parse(&["mount", "/x", json])? {
            Callout::Mount(request) => Ok(request),
            other => panic!("{other:?}"),
        }
    };
    let request = mount(
        r#"{"kubernetes.io/pod.namespace":"ns","kubernetes.io/pod.name":"p","kubernetes.io/pod.uid":"u-1",
            "kubernetes.io/fsGroup":"7","kubernetes.io/mounterArgs.FsGroup":"7",
            "kubernetes.io/serviceAccount.name":"default","kubernetes.io/secret/a.b":"a2V5"}"#,
    )
    .unwrap();
    let pod = request.pod.unwrap();
    assert_eq!((&*pod.namespace, &*pod.name, &*pod.uid), ("ns", "p", "u-1"));
    assert_eq!(pod.service_account.as_deref(), Some("default"));
    assert_eq!(request.fs_group, Some(7));
    assert_eq!(request.secrets["a.b"].expose(), b"key");
    assert!(request.volume.options.is_empty());
    let part = mount(r#"{"kubernetes.io/pod.namespace":"ns","kubernetes.io/pod.uid":"u"}"#);
    let error = part.unwrap_err().to_string();
    assert_eq!(error, "kubernetes.io/pod.name is missing");
    let r#static = r#"{"kubernetes.io/pod.namespace":"ns","kubernetes.io/pod.name":"p","kubernetes.io/pod.uid":"u",
        "kubernetes.io/serviceAccount.name":""}"#;
    assert_eq!(mount(r#static).unwrap().pod.unwrap().service_account, None);
    for json in [
        r#"{"kubernetes.io/pod.namespace":"ns"}"#,
        r#"{"kubernetes.io/pod.namespace":"..","kubernetes.io/pod.name":"p","kubernetes.io/pod.uid":"u"}"#,
        r#"{"kubernetes.io/fsGroup":"-1"}"#,
        r#"{"kubernetes.io/fsGroup":"4294967296"}"#,
        r#"{"kubernetes.io/fsGroup":"4294967295"}"#,
        r#"{"kubernetes.io/fsGroup":"7","kubernetes.io/mounterArgs.FsGroup":"8"}"#,
        r#"{"kubernetes.io/secret/a":"hunter2"}"#,
    ] {
        let error = mount(json).unwrap_err().report();
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn provision_takes_the_most_exact_size() {
    let provision = |json: &str| -> Result<(Volume, Bytes)> {
        match parse(&["provision", json])? {
            Callout::Provision { volume, size } => Ok((volume, size)),
            other => panic!("{other:?}"),
        }
    };
    let (volume, size) = provision(
        r#"{"kubernetes.io/pvOrVolumeName":"v","requestBytes":"1048577","requestMiB":"2","requestGiB":"1","pool":"fast"}"#,
    )
    .unwrap();
    assert_eq!(size, Bytes(1_048_577));
    assert_eq!(volume.options, Options::from_iter([("pool", "fast")]));
    let (_, size) = provision(r#"{"kubernetes.io/pvOrVolumeName":"v","requestGiB":"3"}"#).unwrap();
    assert_eq!(size, Bytes(3 << 30));
    for json in [
        r#"{"requestBytes":"1"}"#,
        r#"{"kubernetes.io/pvOrVolumeName":"v"}"#,
        r#"{"kubernetes.io/pvOrVolumeName":"v","requestBytes":"0"}"#,
        r#"{"kubernetes.io/pvOrVolumeName":"v","requestBytes":"-1"}"#,
        r#"{"kubernetes.io/pvOrVolumeName":"v","requestBytes":"1Gi"}"#,
        r#"{"kubernetes.io/pvOrVolumeName":"v","requestGiB":"8589934592"}"#,
        r#"{"kubernetes.io/pvOrVolumeName":"v","requestGiB":"1","kubernetes.io/pvc.namespace":"a.b"}"#,
    ] {
        assert!(provision(json).is_err(), "{json}");
    }
}

#[test]
fn arguments_need_not_be_utf_8() {
    let bytes = |text: &[u8]| OsStr::from_bytes(text).to_owned();
    let unmount = Callout::parse(&["unmount".into(), bytes(b"/a\xff")]);
    assert!(matches!(unmount, Ok(Callout::Unmount { .. })));
    assert!(Callout::parse(&["delete".into(), bytes(b"{\"\xff\":\"\"}")]).is_err());
    assert!(matches!(
        Callout::parse(&[bytes(b"\xff")]),
        Ok(Callout::Unknown(_))
    ));
}

proptest! {
    #[test]
    fn what_is_written_reads_back(callout in callout()) {
        let argv = callout.to_argv();
        let read = Callout::parse(&argv).unwrap();
        // `Debug` hides the content of a `Secret`, so the arguments are compared as well.
        prop_assert_eq!(format!("{read:?}"), format!("{callout:?}"));
        prop_assert_eq!(read.to_argv(), argv);
    }

    #[test]
    fn no_arguments_make_the_parser_panic(
        name in prop::sample::select(Callout::NAMES.to_vec()),
        arguments in prop::collection::vec(any_argument(), 0..6),
    ) {
        let mut argv = vec![OsString::from(name)];
        argv.extend(arguments);
        if let Err(error) = Callout::parse(&argv) {
            prop_assert_eq!(error.kind(), ErrorKind::Invalid);
        }
    }
}
