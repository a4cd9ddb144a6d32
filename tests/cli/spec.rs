//! The examples of flex-spec.md: each parses as the callout that it illustrates, and each reply is
//! written as a driver writes it.

use crate::examples::{Example, examples, filled};
use flexvol_sdk::{Callout, Capabilities, Driver, DriverStatus, Status, answer};
use flexvol_testing::{Points, tests};
use std::ffi::OsString;

tests! {
    "spec: every callout has examples" => every_callout_has_examples;
    "spec: every example is read as its section says" => examples_are_read;
    "spec: every reply is word for word what is written" => replies_are_literal;
}

/// Values of the placeholders in tests that execute nothing.
const VALUES: [(&str, &str); 5] = [
    ("BYTES", "1073741824"),
    ("POOLSIZE", "4294967296"),
    ("HANDLE", "0123456789abcdef0123456789abcdef"),
    ("VOLUMEID", "3eb1bd439947eb762998e566ccc2e099"),
    ("DIR/", "/var/lib/kubelet/pods/1/volumes/example.com~loop/"),
];

fn argv(example: &Example) -> Vec<OsString> {
    let argv = example.argv.iter();
    argv.map(|word| filled(word, &VALUES).into()).collect()
}

fn reply(example: &Example) -> DriverStatus {
    let line = filled(&example.reply, &VALUES);
    serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
}

fn every_callout_has_examples(points: &Points) {
    let examples = examples();
    for name in Callout::NAMES {
        let its = examples.iter().filter(|example| example.section == name);
        let succeeds = its
            .clone()
            .any(|example| reply(example).status != Status::Failure);
        assert!(succeeds, "{name}: no example of a call that works");
        points.add(1);
    }
}

fn examples_are_read(points: &Points) {
    struct Nothing;
    impl Driver for Nothing {}
    for example in examples() {
        let (argv, reply) = (argv(&example), reply(&example));
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
        let line = filled(&example.reply, &VALUES);
        assert_eq!(reply(&example).to_line().trim_end(), line, "{example:?}");
        points.add(1);
    }
}
