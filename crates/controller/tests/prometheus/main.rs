//! Metrics and alerts as Prometheus reads them, by its own `promtool` (Debian's package `prometheus`).
//!
//! Without promtool these tests do nothing and say so; with `CI=true` they fail then.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(clippy::print_stdout, reason = "a test that cannot run says so")]

use flexvol_controller::support::metrics::Metrics;
use flexvol_sdk::{Bytes, PoolSpace};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::{ErrorKind, Write},
    process::{Command, Stdio},
    time::Duration,
};

const ALERTS: &str = include_str!("../../../../deploy/chart/alerts.yaml");
const PAGE: &str = include_str!("../../../../docs/operate/monitoring.md");

/// Runs promtool in the directory of this file. Fails if it finds a problem.
fn promtool(arguments: &[&str], input: &str) {
    let mut command = Command::new("promtool");
    command.args(arguments);
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/prometheus"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = match command.stderr(Stdio::piped()).spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let is_ci = env::var_os("CI").is_some_and(|ci| ci == "true");
            assert!(!is_ci, "no promtool (package prometheus)");
            println!("not run: no promtool (package prometheus)");
            return;
        }
        child => child.unwrap(),
    };
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{arguments:?}:\n{said}\n{input}");
}

/// Metrics of which each has a value.
fn metrics() -> String {
    let metrics = Metrics::default();
    metrics.requested("get", "nodevolumes", 200);
    metrics.relisted("nodevolumes");
    metrics.watch_failed("nodevolumes");
    metrics.operated("provision", "done");
    metrics.called("a/b", "provision", Duration::from_secs(1));
    let of = |name: &str| ("a/b".to_owned(), name.to_owned());
    metrics.lack(&BTreeMap::from([(of("class"), Bytes(1))]));
    let space = PoolSpace {
        pool: "pool".to_owned(),
        size: Some(Bytes(3)),
        free: Some(Bytes(2)),
        promised: Some(Bytes(1)),
    };
    metrics.pools(&BTreeMap::from([(of("pool"), space)]));
    metrics.of_queue("volume").queued.observe(1.0);
    metrics.volumes("settled").set(1);
    metrics.stateful_sets("growing").set(1);
    metrics.certificate_renewal(1);
    metrics.text()
}

/// Converts OpenMetrics to the older format, which `promtool check metrics` reads: there a counter and an info are
/// declared by the names of their samples, and an info is a gauge.
fn older_format(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    let kind = |name: &str| {
        let declaration = format!("# TYPE {name} ");
        let mut kinds = lines
            .iter()
            .filter_map(|line| line.strip_prefix(&declaration));
        kinds.next().unwrap_or_default()
    };
    let convert = |line: &&str| {
        let mut words = line.splitn(4, ' ');
        let (Some("#"), Some(what), Some(name)) = (words.next(), words.next(), words.next()) else {
            return format!("{line}\n");
        };
        let rest = words.next().unwrap_or_default();
        let (suffix, rest) = match (kind(name), what) {
            ("counter", _) => ("_total", rest),
            ("info", "TYPE") => ("_info", "gauge"),
            ("info", _) => ("_info", rest),
            _ => ("", rest),
        };
        format!("# {what} {name}{suffix} {rest}\n")
    };
    lines
        .iter()
        .filter(|line| **line != "# EOF")
        .map(convert)
        .collect()
}

/// The alerts with their expressions.
fn alerts() -> BTreeMap<String, Value> {
    let all: Value = serde_saphyr::from_str(ALERTS).unwrap();
    let rules = all["groups"][0]["rules"].as_array().unwrap().iter();
    let named = rules.map(|rule| (rule["alert"].as_str().unwrap().to_owned(), rule.clone()));
    named.collect()
}

/// The names of our metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("flexvol_")).collect()
}

/// The labels of each metric, from its samples.
fn samples(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::<_, BTreeSet<_>>::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (sample, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
        let parts = ["_bucket", "_sum", "_count"];
        let whole = parts.iter().find_map(|part| name.strip_suffix(part));
        let labels = labels.trim_end_matches('}').split(',');
        let labels = labels.filter_map(|label| label.split_once('='));
        let labels = labels.map(|(name, _)| name.to_owned());
        found
            .entry(whole.unwrap_or(name).to_owned())
            .or_default()
            .extend(labels.filter(|name| name != "le"));
    }
    found
}

#[test]
fn prometheus_has_nothing_against_the_names_and_types_of_metrics() {
    promtool(&["check", "metrics"], &older_format(&metrics()));
}

/// Importing is what promtool does with OpenMetrics. Samples need a time for that.
#[test]
fn prometheus_reads_metrics_in_the_format_that_they_are_said_to_have() {
    let dir = tempfile::tempdir().unwrap();
    let timed = |line: &str| match line.starts_with('#') {
        true => format!("{line}\n"),
        false => format!("{line} 1700000000\n"),
    };
    let file = dir.path().join("metrics");
    fs::write(&file, metrics().lines().map(timed).collect::<String>()).unwrap();
    let [file, made] = [file, dir.path().join("made")].map(|path| path.display().to_string());
    let import = ["tsdb", "create-blocks-from", "openmetrics", &file, &made];
    promtool(&import, "");
}

#[test]
fn prometheus_understands_the_alerts() {
    let file = "../../../../deploy/chart/alerts.yaml";
    promtool(&["check", "rules", "--lint=all", "--lint-fatal", file], "");
}

#[test]
fn alerts_fire_when_a_person_has_to_act_and_not_otherwise() {
    promtool(&["test", "rules", "alerts.yaml"], "");
}

#[test]
fn every_metric_is_documented_with_its_labels_and_no_other_is() {
    let rows = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("| `flexvol_"));
    let documented = rows.map(|row| {
        let cells: Vec<_> = row.split('|').collect();
        let name = format!("flexvol_{}", cells[0].trim().trim_end_matches('`'));
        let labels = cells[2].split('`').skip(1).step_by(2);
        (name, labels.map(str::to_owned).collect())
    });
    let documented: BTreeMap<String, BTreeSet<String>> = documented.collect();
    assert_eq!(samples(&metrics()), documented);
}

#[test]
fn every_alert_is_about_metrics_that_there_are_and_says_what_to_do() {
    let text = metrics();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let known: BTreeSet<_> = samples.flat_map(names).collect();
    for (name, rule) in alerts() {
        let expression = rule["expr"].as_str().unwrap();
        let about = names(expression);
        assert!(!about.is_empty(), "{name}: {expression}");
        assert!(about.is_subset(&known), "{name}: {expression}");
        for part in ["summary", "impact", "action"] {
            let said = rule["annotations"][part].as_str().unwrap_or_default();
            assert!(said.ends_with('.'), "{name}: {part}: {said:?}");
        }
    }
}

#[test]
fn every_alert_is_documented_and_has_a_test() {
    let tests = include_str!("alerts.yaml");
    let rows = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("| `Flexvol"));
    let documented = rows.map(|row| format!("Flexvol{}", row.split('`').next().unwrap()));
    let documented: BTreeSet<_> = documented.collect();
    let alerts: BTreeSet<_> = alerts().into_keys().collect();
    assert_eq!(documented, alerts);
    for name in alerts {
        assert!(tests.contains(&format!("alertname=\"{name}\"")), "{name}");
    }
}
