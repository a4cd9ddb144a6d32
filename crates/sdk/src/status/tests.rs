use super::*;
use crate::{ErrorKind, Filesystem, Handle};
use proptest::{collection::btree_map, option, prelude::*};

fn decode(text: &str) -> serde_json::Result<DriverStatus> {
    serde_json::from_str(text)
}

#[test]
fn replies_are_written_word_for_word() {
    let local = Capabilities {
        attach: false,
        ..Capabilities::default()
    };
    let provisioned = Provisioned::new(Handle::from_bytes([0xab; 16]), Bytes::GIB)
        .with_option("pool", "fast")
        .with_filesystem(Some(Filesystem::Xfs.into()));
    let full = Error::new(ErrorKind::Exhausted, "the pool is full").because("/pool");
    for (reply, line) in [
        (DriverStatus::success(), r#"{"status":"Success"}"#),
        (
            DriverStatus::not_supported(),
            r#"{"status":"Not supported"}"#,
        ),
        (
            DriverStatus::initialized(local),
            r#"{"status":"Success","capabilities":{"attach":false,"selinuxRelabel":true,"supportsMetrics":false,"fsGroup":true,"requiresFSResize":true}}"#,
        ),
        (
            DriverStatus::device(String::new()),
            r#"{"status":"Success","device":""}"#,
        ),
        (
            DriverStatus::attached(false),
            r#"{"status":"Success","attached":false}"#,
        ),
        (
            DriverStatus::expanded(Some(Bytes::MIB)),
            r#"{"status":"Success","volumeNewSize":1048576}"#,
        ),
        (DriverStatus::expanded(None), r#"{"status":"Success"}"#),
        (
            DriverStatus::capacity(Bytes::KIB.into()),
            r#"{"status":"Success","capacity":1024}"#,
        ),
        (
            DriverStatus::capacity(Capacity {
                largest: Bytes(1),
                shortfall: Some(Bytes(0)),
                pool: Some(PoolSpace {
                    pool: "fast".to_owned(),
                    size: Some(Bytes::KIB),
                    free: Some(Bytes(0)),
                    promised: Some(Bytes::MIB),
                }),
            }),
            r#"{"status":"Success","capacity":1,"missing":0,"poolSpace":{"pool":"fast","size":1024,"free":0,"promised":1048576}}"#,
        ),
        (
            // What is unknown is not told, and never zero.
            DriverStatus::capacity(Capacity {
                largest: Bytes(1),
                shortfall: None,
                pool: Some(PoolSpace {
                    pool: "fast".to_owned(),
                    ..PoolSpace::default()
                }),
            }),
            r#"{"status":"Success","capacity":1,"poolSpace":{"pool":"fast"}}"#,
        ),
        (
            DriverStatus::provisioned(provisioned),
            r#"{"status":"Success","volumeName":"abababababababababababababababab","options":{"pool":"fast"},"capacity":1073741824,"fsType":"xfs"}"#,
        ),
        (
            DriverStatus::failure(&full),
            r#"{"status":"Failure","message":"the pool is full","errorClass":"exhausted"}"#,
        ),
    ] {
        assert_eq!(reply.to_line(), format!("{line}\n"));
        assert_eq!(decode(line).unwrap(), reply);
    }
}

#[test]
fn a_message_is_one_line_of_at_most_4_kib() {
    let long = Error::new(ErrorKind::Bug, format!("a\r\n{}", "ü".repeat(9000)));
    let line = DriverStatus::failure(&long).to_line();
    assert_eq!(line.find('\n'), Some(line.len() - 1));
    let message = decode(&line).unwrap().message.unwrap();
    assert!(message.starts_with("a  ü") && message.ends_with("ü…"));
    assert!(message.len() <= LONGEST_MESSAGE + '…'.len_utf8());
}

#[test]
fn replies_are_read_as_kubelet_reads_them() {
    let read = |text: &str| decode(text).unwrap();
    assert_eq!(read("{}").status, Status::Failure);
    assert_eq!(read(r#"{"status":"success"}"#).status, Status::Failure);
    assert_eq!(read(r#" {"STATUS":"Success"}"#).status, Status::Success);
    assert_eq!(
        read(r#"{"status":"Failure","status":"Not supported","x":[1]}"#).status,
        Status::NotSupported
    );
    assert_eq!(
        read(r#"{"attached":null,"capabilities":null}"#).attached,
        None
    );
    assert_eq!(
        read(r#"{"Capabilities":{"Attach":false,"fsgroup":null,"new":1}}"#).capabilities,
        Some(Capabilities {
            attach: false,
            ..Capabilities::default()
        })
    );
    assert_eq!(
        read(r#"{"PoolSpace":{"Pool":"a","size":null,"FREE":1,"new":{}}}"#).pool_space,
        Some(PoolSpace {
            pool: "a".to_owned(),
            free: Some(Bytes(1)),
            ..PoolSpace::default()
        })
    );
    for spoilt in [
        "",
        "[]",
        "null",
        "{} {}",
        r#"warning {"status":"Success"}"#,
        r#"{"status":"Success"} x"#,
        r#"{"status":1}"#,
        r#"{"attached":"true"}"#,
        r#"{"device":{}}"#,
        r#"{"volumeNewSize":"123"}"#,
        r#"{"volumeNewSize":1.5e9}"#,
        r#"{"volumeNewSize":-1}"#,
        r#"{"poolSpace":{"free":"1Gi"}}"#,
        r#"{"capabilities":{"attach":"false"}}"#,
        "{\"message\":\"a\nb\"}",
        "\u{feff}{}",
    ] {
        assert!(decode(spoilt).is_err(), "{spoilt}");
    }
}

#[test]
fn a_secret_in_the_arguments_keeps_the_exit_code_at_zero() {
    let failure = DriverStatus::failure(&Error::new(ErrorKind::Busy, "busy"));
    let argv = |json: &str| vec!["mount".into(), "/d".into(), json.into()];
    let secret = argv(r#"{"kubernetes.io/secret/key":"a2V5"}"#);
    assert_eq!(failure.exit_code(&argv("{}")), 1);
    assert_eq!(failure.exit_code(&secret), 0);
    assert_eq!(failure.exit_code(&argv("{broken kubernetes.io/secret/")), 0);
    assert_eq!(DriverStatus::not_supported().exit_code(&[]), 1);
    assert_eq!(DriverStatus::success().exit_code(&argv("{}")), 0);
}

fn class() -> impl Strategy<Value = ErrorClass> {
    prop_oneof![
        Just(ErrorClass::Retryable),
        Just(ErrorClass::Infeasible),
        Just(ErrorClass::Exhausted),
        Just(ErrorClass::Uncertain),
    ]
}

prop_compose! {
    fn capabilities()(bits: [bool; 6]) -> Capabilities {
        let [attach, selinux_relabel, supports_metrics, fs_group, requires_fs_resize, concurrent_fs_resize] = bits;
        Capabilities {
            attach, selinux_relabel, supports_metrics, fs_group, requires_fs_resize, concurrent_fs_resize,
        }
    }
}

prop_compose! {
    fn pool_space()(pool: String, sizes: [Option<u64>; 3]) -> PoolSpace {
        let [size, free, promised] = sizes.map(|size| size.map(Bytes));
        PoolSpace { pool, size, free, promised }
    }
}

prop_compose! {
    fn reply()(
        status in prop_oneof![Just(Status::Success), Just(Status::Failure), Just(Status::NotSupported)],
        texts: [Option<String>; 3],
        message in option::of("\\PC*"),
        attached: Option<bool>,
        capabilities in option::of(capabilities()),
        sizes: [Option<u64>; 3],
        pool_space in option::of(pool_space()),
        options in btree_map(any::<String>(), any::<String>(), 0..3),
        topology in btree_map(any::<String>(), any::<String>(), 0..3),
        error_class in option::of(class()),
    ) -> DriverStatus {
        let [device, volume_name, fs_type] = texts;
        let [volume_new_size, capacity, shortfall] = sizes.map(|size| size.map(Bytes));
        DriverStatus {
            status, message, device, volume_name, attached, capabilities, volume_new_size,
            options, capacity, shortfall, pool_space, topology, fs_type, error_class,
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_reads_back(reply in reply()) {
        prop_assert_eq!(decode(&reply.to_line()).unwrap(), reply);
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "\\{.*\\}|.*") {
        let _ = decode(&text);
    }
}
