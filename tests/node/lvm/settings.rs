//! Settings in lvm.conf that change the format of reports.

use super::{GROWN, NEEDS, inventory};
use crate::node::Node;
use flexvol_testing::{Outcome, Points, json, tests};
use std::fs;

tests! {
    "lvm: reports are understood whatever lvm.conf says of their form", NEEDS => forms;
}

const CONFIGURATION: &str = "/etc/lvm/lvm.conf";

const FORMS: [&str; 13] = [
    "report { prefixes = 1 }",
    "report { prefixes = 1 quoted = 0 }",
    "report { columns_as_rows = 1 }",
    "report { headings = 0 }",
    "report { mark_hidden_devices = 0 two_word_unknown_device = 1 }",
    "report { compact_output = 1 list_item_separator = \";\" binary_values_as_numeric = 1 }",
    "report { output_format = \"json_std\" buffered = 0 aligned = 0 separator = \"|\" }",
    "log { report_command_log = 1 }",
    "log { command_names = 1 }",
    "log { prefix = \"lvm says: \" }",
    "log { indent = 1 verbose = 3 level = 7 }",
    "log { silent = 1 }",
    "global { units = \"H\" suffix = 1 si_unit_consistency = 0 }",
];

fn forms(points: &Points) {
    let node = Node::linear();
    let volume = node.volume_of("before", "ext4");
    let capacity = |form: &str| {
        let call = node.driver.call(&["capacity", &json([])]);
        assert!(call.outcome() == Outcome::Success, "{form}: {call}");
        call.object().unwrap()["capacity"].as_u64().unwrap()
    };
    let expected = capacity("as it was");
    let usual = fs::read(CONFIGURATION).unwrap_or_default();
    for form in FORMS {
        fs::write(CONFIGURATION, form).unwrap();
        assert_eq!(capacity(form), expected, "{form}");
        points.add(1);
    }
    fs::write(CONFIGURATION, FORMS[0]).unwrap();
    let pod = node.pod(&volume);
    pod.mount("rw").success();
    node.expand(&volume, GROWN).success();
    pod.unmount().success();
    node.delete(&volume).success();
    fs::write(CONFIGURATION, usual).unwrap();
    assert!(
        !inventory().iter().any(|line| line.contains("flexvol-")),
        "{:?}",
        inventory()
    );
    points.add(1);
}
