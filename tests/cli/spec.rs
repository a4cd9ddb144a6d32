//! The examples of flex-spec.md: every one parses as what it is an example of, and every reply is
//! written as a driver writes it.

use flexvol_sdk::{Callout, Capabilities, Driver, DriverStatus, Status, answer};
use flexvol_testing::{Points, Test};
use std::ffi::OsString;

pub const TESTS: &[Test] = &[
    Test {
        name: "spec: every callout has examples",
        needs: &[],
        run: every_callout_has_examples,
    },
    Test {
        name: "spec: every example is read as its section says",
        needs: &[],
        run: examples_are_read,
    },
    Test {
        name: "spec: every reply is word for word what is written",
        needs: &[],
        run: replies_are_literal,
    },
];

const SPEC: &str = include_str!("../../flex-spec.md");

/// One exec of the document: `$ driver CALLOUT …` and the line after it.
#[derive(Clone, Debug)]
pub struct Example {
    /// The heading it stands under, which for most is the callout's name.
    pub section: String,
    /// Whether it is about a driver installed with attach.
    pub attach: bool,
    /// The arguments after the executable, with placeholders.
    pub argv: Vec<String>,
    /// The reply, with placeholders.
    pub reply: String,
}

/// What stands for something that only a real exec knows, and a value for those that are none.
const PLACEHOLDERS: [(&str, &str); 3] = [
    ("BYTES", "1073741824"),
    ("HANDLE", "0123456789abcdef0123456789abcdef"),
    ("DIR/", "/var/lib/kubelet/pods/1/volumes/example.com~loop/"),
];

/// The examples in the order of the document, in which they can be run one after another.
pub fn examples() -> Vec<Example> {
    let mut examples = Vec::new();
    let mut section = String::new();
    let mut lines = SPEC.lines();
    while let Some(line) = lines.next() {
        if let Some(heading) = line.strip_prefix("### ") {
            section = heading.trim_matches('`').to_owned();
        }
        let Some(info) = line.strip_prefix("```console") else {
            continue;
        };
        let mut argv = None;
        for line in lines.by_ref().take_while(|line| *line != "```") {
            match line.strip_prefix("$ driver ") {
                Some(command) => argv = Some(words(command)),
                None => examples.push(Example {
                    section: section.clone(),
                    attach: info.contains("attach"),
                    argv: argv
                        .take()
                        .unwrap_or_else(|| panic!("no command before {line}")),
                    reply: line.to_owned(),
                }),
            }
        }
        assert_eq!(argv, None, "a command without a reply in {section}");
    }
    examples
}

/// The words of a command line: single quotes and spaces are all the shell that examples use.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    for c in command.chars() {
        match c {
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            ' ' if !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    assert!(!quoted, "an open quote in {command}");
    words.extend(word);
    words
}

impl Example {
    fn argv(&self) -> Vec<OsString> {
        self.argv.iter().map(|word| filled(word).into()).collect()
    }

    fn reply(&self) -> DriverStatus {
        serde_json::from_str(&filled(&self.reply)).unwrap_or_else(|e| panic!("{e}: {}", self.reply))
    }
}

fn filled(text: &str) -> String {
    PLACEHOLDERS
        .iter()
        .fold(text.to_owned(), |text, (name, value)| {
            text.replace(name, value)
        })
}

fn every_callout_has_examples(points: &Points) {
    let examples = examples();
    for name in Callout::NAMES {
        let its = examples.iter().filter(|example| example.section == name);
        let succeeds = its
            .clone()
            .any(|example| example.reply().status != Status::Failure);
        assert!(succeeds, "{name}: no example of a call that works");
        points.add(1);
    }
}

fn examples_are_read(points: &Points) {
    struct Nothing;
    impl Driver for Nothing {}
    for example in examples() {
        let (argv, reply) = (example.argv(), example.reply());
        match Callout::parse(&argv) {
            Ok(callout) => {
                let section = match callout {
                    Callout::Unknown(_) => "What nobody knows",
                    ref known => known.name(),
                };
                assert_eq!(section, example.section, "{example:?}");
            }
            Err(_) => {
                let open = || Ok(Box::new(Nothing) as Box<dyn Driver>);
                let refused = answer(Capabilities::default(), &open, &argv);
                assert_eq!(refused, reply, "{example:?}");
            }
        }
        if let Some(told) = reply.capabilities {
            assert_eq!(told.attach, example.attach, "{example:?}");
        }
        points.add(1);
    }
}

fn replies_are_literal(points: &Points) {
    for example in examples() {
        let line = filled(&example.reply);
        assert_eq!(example.reply().to_line().trim_end(), line, "{example:?}");
        points.add(1);
    }
}
