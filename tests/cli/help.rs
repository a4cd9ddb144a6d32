//! The help texts.

use crate::flexvol;
use assert_cmd::assert::OutputAssertExt;
use flexvol_testing::{Points, tests};

tests! {
    "help: every verb has one, with examples and exit codes" => every_verb;
    "help: a wrong option is exit code 2, and standard output stays empty" => usage;
}

fn stdout(arguments: &[&str]) -> String {
    let assert = flexvol().args(arguments).assert().success();
    String::from_utf8(assert.get_output().stdout.clone()).expect("text")
}

/// The verbs in `--help`: two spaces, the verb, its description.
fn verbs() -> Vec<String> {
    let help = stdout(&["--help"]);
    let commands = help.split("Commands:\n").nth(1).expect("a list of verbs");
    let lines = commands.lines().take_while(|line| !line.is_empty());
    lines
        .map(|line| {
            let mut words = line.split_whitespace();
            let verb = words.next().expect("a verb").to_owned();
            assert!(words.next().is_some(), "{verb} says nothing of itself");
            verb
        })
        .collect()
}

fn every_verb(points: &Points) {
    let verbs = verbs();
    assert!(verbs.len() > 10, "{verbs:?}");
    for verb in &verbs {
        let verb_help = match verb.as_str() {
            "pool" => stdout(&["pool", "init", "--help"]),
            _ => stdout(&[verb, "--help"]),
        };
        for section in ["Usage: ", "Examples:\n  flexvol ", "Exit status: "] {
            assert!(verb_help.contains(section), "{verb}: {section}");
        }
        for hidden in ["--name <VENDOR", "--every", "--caller"] {
            assert!(!verb_help.contains(hidden), "{verb}: {hidden}");
        }
        points.add(1);
    }
}

fn usage(points: &Points) {
    for arguments in [
        &["install"][..],
        &["install", "--name"],
        &["uninstall", "--name", "x"],
        &["doctor", "--output", "xml"],
        &["call"],
        &["install", "--name", "a/b", "--every", "1"],
        &["install", "--name", "a/b", "--watch", "--every", "0"],
        &["create", "a", "--size", "0"],
        &["create", "a", "--size", "-5Gi"],
        &["explain", "a", "--size", "0"],
        &["--what"],
    ] {
        let assert = flexvol().args(arguments).assert().failure().code(2);
        assert.stdout("");
        points.add(1);
    }
}
