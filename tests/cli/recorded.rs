//! Compares what flex-spec.md says about callers with the recordings of their calls.

use crate::recordings::{OF_ANOTHER, OF_THIS_DRIVER, Recording};
use flexvol_sdk::Callout;
use flexvol_testing::{Points, Recorded, tests};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Write,
    fs,
    path::Path,
};

tests! {
    "recorded: every recording in the tree is read" => all_are_read;
    "recorded: every call has the arguments that flex-spec.md says for its release"
        => layouts_are_declared;
    "recorded: who calls what is as flex-spec.md says" => callers_are_told;
    "recorded: the directory of expandfs is the one that flex-spec.md says for its release"
        => directories_of_expandfs;
    "recorded: the table in flex-spec.md is made from the recordings"
        => table_is_made_from_recordings;
}

const SPEC: &str = include_str!("../../flex-spec.md");
const PROJECT: &str = env!("CARGO_MANIFEST_DIR");
const SECTION: &str = "\n## What was recorded\n";

fn recordings() -> impl Iterator<Item = Recording> {
    [OF_ANOTHER].into_iter().chain(OF_THIS_DRIVER)
}

/// Every recorded call, with its release.
fn calls() -> Vec<(&'static str, Recorded, Value)> {
    let calls = |recording: Recording| {
        let lines = recording.lines().into_iter();
        lines.map(move |line| (recording.release, Recorded::of(&line), line))
    };
    recordings().flat_map(calls).collect()
}

fn all_are_read(points: &Points) {
    let dir = Path::new(PROJECT).join("tests/fixtures/calls");
    let files: BTreeSet<_> = fs::read_dir(dir)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    let read: BTreeSet<_> = OF_THIS_DRIVER
        .map(|recording| format!("{}.jsonl", recording.release))
        .into();
    assert_eq!(files, read, "tests/recordings/mod.rs names them");
    points.add(u64::try_from(read.len()).unwrap());
}

/// A range of minor releases, both included.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
struct Range(u64, u64);

impl Range {
    /// Parses `1.13 to 1.37`, `since 1.24` or `1.13` at the beginning of a text.
    fn read(text: &str) -> Option<Self> {
        let mut words = text.split([' ', ',', ':']);
        let first = words.next()?;
        if first == "since" {
            return Some(Range(minor(words.next()?)?, u64::MAX));
        }
        let first = minor(first)?;
        let last = match words.next() {
            Some("to") => minor(words.next()?)?,
            _ => first,
        };
        Some(Range(first, last))
    }

    fn includes(self, release: &str) -> bool {
        let minor = minor(release).unwrap();
        self.0 <= minor && minor <= self.1
    }
}

/// The minor release: 24 of `1.24` and of `1.24.17`.
fn minor(release: &str) -> Option<u64> {
    release.strip_prefix("1.")?.split('.').next()?.parse().ok()
}

/// The layouts in a callout's section: arguments, and the releases of Kubernetes that send them.
fn declared(callout: &str) -> Vec<(Vec<&'static str>, Range)> {
    let heading = format!("\n### `{callout}`\n");
    let (_, section) = SPEC
        .split_once(&heading)
        .unwrap_or_else(|| panic!("{callout} has no section"));
    let section = section.split("\n#").next().unwrap();
    let lines = section.lines().filter_map(|line| line.strip_prefix("    "));
    let layouts = lines.filter_map(|line| {
        let (layout, releases) = line.split_once("  ")?;
        let range = Range::read(releases.trim_start())?;
        let mut words = layout.split(' ');
        assert_eq!(words.next(), Some(callout), "{line}");
        Some((words.collect(), range))
    });
    layouts.collect()
}

/// Whether a recorded argument of this kind fits a word of a layout.
fn is(word: &str, kind: &str) -> bool {
    match word {
        "JSON" => kind.starts_with("JSON("),
        "DIR" => kind.starts_with("DIR("),
        "DEVICE" => kind.starts_with("DEVICE"),
        "NEW" | "OLD" => kind == "BYTES",
        "NAME" | "NODE" => kind == "NAME",
        _ => panic!("a layout has {word}"),
    }
}

/// Checks what kinds do not distinguish: names of volumes and nodes, new and old sizes.
fn values_are_right(layout: &[&str], line: &Value, volumes: &BTreeSet<String>) -> bool {
    let value = |word: &str| {
        let at = layout.iter().position(|other| *other == word)?;
        line["argv"][at + 1].as_str()
    };
    let size = |word| value(word).map(|text| text.parse::<u64>().unwrap());
    size("NEW") >= size("OLD")
        && value("NAME").is_none_or(|name| volumes.contains(name))
        && value("NODE").is_none_or(|node| !volumes.contains(node))
}

fn layouts_are_declared(points: &Points) {
    let calls = calls();
    let volumes: BTreeSet<_> = calls
        .iter()
        .flat_map(|(_, _, line)| line["argv"].as_array().unwrap())
        .filter_map(|argument| serde_json::from_str::<Value>(argument.as_str()?).ok())
        .filter_map(|json| Some(json["kubernetes.io/pvOrVolumeName"].as_str()?.to_owned()))
        .collect();
    for (release, call, line) in &calls {
        let declared = declared(&call.callout);
        let fits = declared.iter().any(|(layout, range)| {
            let mut pairs = layout.iter().zip(&call.layout);
            range.includes(release)
                && layout.len() == call.layout.len()
                && pairs.all(|(word, kind)| is(word, kind))
                && values_are_right(layout, line, &volumes)
        });
        assert!(fits, "{release}: {call:?} is none of {declared:?}");
        points.add(1);
    }
}

/// Compares the callers of each callout with the text above the table.
fn callers_are_told(points: &Points) {
    const CONTROLLER: &str = "kube-controller-manager";
    let mut callers = BTreeMap::<_, BTreeMap<_, BTreeSet<_>>>::new();
    for (release, call, _) in calls() {
        let all = callers.entry(call.callout).or_default();
        all.entry(release).or_default().insert(call.caller);
    }
    for callout in Callout::NAMES {
        let expected: &[&str] = match callout {
            "init" | "getvolumename" => &[CONTROLLER, "kubelet"],
            "attach" | "isattached" | "detach" => &[CONTROLLER],
            "expandvolume" | "provision" | "delete" | "capacity" => &[],
            _ => &["kubelet"],
        };
        for recording in recordings() {
            let found = callers
                .get(callout)
                .and_then(|all| all.get(recording.release));
            let found: Vec<_> = found.into_iter().flatten().collect();
            assert_eq!(found, expected, "{callout} in {}", recording.release);
            points.add(1);
        }
    }
}

/// Compares the recorded directories of `expandfs` with the row of the specification, by release.
fn directories_of_expandfs(points: &Points) {
    let row = SPEC
        .lines()
        .find(|line| line.starts_with("| DIR of `expandfs` |"))
        .unwrap();
    let cell = row.split('|').nth(3).unwrap();
    let (told, _) = cell.split_once('(').unwrap();
    let told: Vec<_> = told
        .split(';')
        .map(|part| (Range::read(part.trim()).unwrap(), part))
        .collect();
    let mut found = BTreeMap::<_, BTreeSet<_>>::new();
    for (release, call, _) in calls() {
        if call.callout == "expandfs" {
            found
                .entry(release)
                .or_default()
                .insert(call.layout[2].clone());
        }
    }
    for (release, found) in found {
        let mut parts = told.iter().filter(|(range, _)| range.includes(release));
        let (_, part) = parts.next().unwrap();
        assert!(parts.next().is_none(), "{release} is told twice: {cell}");
        let expected = [("node's", "DIR(node)"), ("pod's", "DIR(pod)")]
            .into_iter()
            .filter(|(word, _)| part.contains(word));
        let expected: BTreeSet<_> = expected.map(|(_, kind)| kind.to_owned()).collect();
        assert_eq!(found, expected, "{release}: {part}");
        points.add(1);
    }
}

/// The table of callouts, callers and arguments, with the releases that made them.
fn table() -> String {
    let mut rows = BTreeMap::<_, BTreeSet<_>>::new();
    for (release, call, _) in calls() {
        let order = Callout::NAMES.iter().position(|name| *name == call.callout);
        let row = (order, call.callout, call.caller, call.layout.join(" "));
        rows.entry(row).or_default().insert(release);
    }
    let releases: Vec<_> = OF_THIS_DRIVER
        .iter()
        .map(|recording| recording.release)
        .collect();
    let mut text = format!(
        "| callout | caller | arguments | {} |\n|---|---|---|{}\n",
        releases.join(" | "),
        "---|".repeat(releases.len())
    );
    for ((_, callout, caller, arguments), by) in rows {
        // Spaces allow line breaks in a long list of keys.
        let arguments = match arguments.replace(',', ", ") {
            none if none.is_empty() => "none".to_owned(),
            some => some,
        };
        write!(text, "| `{callout}` | {caller} | {arguments} |").unwrap();
        for release in &releases {
            text.push_str(if by.contains(release) { " yes |" } else { " |" });
        }
        text.push('\n');
    }
    text
}

fn table_is_made_from_recordings(points: &Points) {
    let table = table();
    if env::var_os("FLEXVOL_BLESS").is_some() {
        let path = Path::new(PROJECT).join("flex-spec.md");
        let spec = fs::read_to_string(&path).unwrap();
        fs::write(&path, spec.replace(written(&spec), &table)).unwrap();
        return;
    }
    assert!(
        written(SPEC) == table,
        "the table of what was recorded is not what the recordings say; run with FLEXVOL_BLESS=1"
    );
    points.add(u64::try_from(table.lines().count()).unwrap());
}

/// The table in the document.
fn written(spec: &str) -> &str {
    let (_, section) = spec.split_once(SECTION).expect("the section");
    let section = section.split("\n#").next().unwrap();
    let (from, to) = (section.find("\n|").unwrap(), section.rfind("|\n").unwrap());
    &section[from + 1..to + 2]
}
