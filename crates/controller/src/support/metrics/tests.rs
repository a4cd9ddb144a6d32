use super::*;
use std::collections::BTreeMap;

fn space(size: u64, free: u64, promised: u64) -> PoolSpace {
    PoolSpace {
        pool: "pool".to_owned(),
        size: Some(Bytes(size)),
        free: Some(Bytes(free)),
        promised: Some(Bytes(promised)),
    }
}

#[test]
fn the_version_is_told() {
    let version = env!("CARGO_PKG_VERSION");
    let line = format!("flexvol_build_info{{version=\"{version}\"}} 1");
    let text = Metrics::default().text();
    assert!(text.lines().any(|found| found == line), "{text}");
}

#[test]
fn what_is_not_measured_is_not_told() {
    let text = Metrics::default().text();
    let samples = || text.lines().filter(|line| !line.starts_with('#'));
    assert!(samples().any(|line| line == "flexvol_leading 0"), "{text}");
    for name in [
        "missing_bytes",
        "pool_size_bytes",
        "pool_free_bytes",
        "pool_promised_bytes",
        "webhook_certificate_renewal_timestamp_seconds",
    ] {
        let name = format!("flexvol_{name}");
        assert!(!samples().any(|line| line.starts_with(&name)), "{name}");
    }
}

/// The lines about pools.
fn pools(metrics: &Metrics) -> Vec<String> {
    let text = metrics.text();
    let lines = text.lines().filter_map(|line| {
        let (name, of) = line.strip_prefix("flexvol_pool_")?.split_once('{')?;
        Some(format!("{name} {of}"))
    });
    let mut lines: Vec<_> = lines.collect();
    lines.sort();
    lines
}

#[test]
fn of_a_pool_is_told_what_its_driver_knows_now() {
    let metrics = Metrics::default();
    let of = |name: &str| ("a/b".to_owned(), name.to_owned());
    let partial = PoolSpace {
        free: None,
        ..space(9, 0, 7)
    };
    metrics.pools(&BTreeMap::from([
        (of("fast"), space(3, 0, 5)),
        (of("slow"), partial),
    ]));
    let expected = [
        r#"free_bytes driver="a/b",pool="fast"} 0"#,
        r#"promised_bytes driver="a/b",pool="fast"} 5"#,
        r#"promised_bytes driver="a/b",pool="slow"} 7"#,
        r#"size_bytes driver="a/b",pool="fast"} 3"#,
        r#"size_bytes driver="a/b",pool="slow"} 9"#,
    ];
    assert_eq!(pools(&metrics), expected);
    metrics.pools(&BTreeMap::from([(of("slow"), space(u64::MAX, 1, 2))]));
    let expected = [
        r#"free_bytes driver="a/b",pool="slow"} 1"#,
        r#"promised_bytes driver="a/b",pool="slow"} 2"#,
        r#"size_bytes driver="a/b",pool="slow"} 9223372036854775807"#,
    ];
    assert_eq!(pools(&metrics), expected);
    metrics.pools(&BTreeMap::new());
    assert_eq!(pools(&metrics), [""; 0]);
}
