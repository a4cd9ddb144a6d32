//! Compares this release's API server in a fixed story with its recording, to which the double in
//! `crates/apiserver` is compared as well. `FLEXVOL_BLESS=1` records it anew.

use crate::{controllers, scenario::Scenario};
use flexvol_lab::kubernetes::Component;
use flexvol_testing::{Need, Points, story::tell, tests};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::{env, fs, path::Path};

tests! {
    "the newest release's API server answers every request of the story as its recording says", &[Need::Root]
        => story;
}

fn story(points: &Points) {
    let scenario = Scenario::begin();
    let lab = scenario.lab();
    controllers::install(lab);
    let cluster = lab.cluster();
    // No other component may write the story's objects.
    let others = Component::ControllerManager;
    cluster.stop(others, Signal::SIGTERM).unwrap();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/api");
    let text = fs::read_to_string(dir.join("story.jsonl")).unwrap();
    let config = fs::read_to_string(cluster.file("/var/lib/lab/kubeconfig")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    let token = config["users"][0]["user"]["token"].as_str().unwrap();
    let found = tell(&text, "https://127.0.0.1:6443", token, |arguments| {
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        lab.run("curl", &arguments)
    });
    cluster.start(others).unwrap();
    cluster.wait_ready().unwrap();
    let file = dir.join("recorded.jsonl");
    if env::var_os("FLEXVOL_BLESS").is_some() {
        let text: String = found.iter().map(|line| format!("{line}\n")).collect();
        fs::write(&file, text).unwrap();
    }
    let known = fs::read_to_string(&file)
        .unwrap_or_else(|e| panic!("{}: {e}; record it with FLEXVOL_BLESS=1", file.display()));
    assert_eq!(found.len(), known.lines().count());
    for (found, known) in found.iter().zip(known.lines()) {
        let known: Value = serde_json::from_str(known).unwrap();
        assert_eq!(*found, known, "found, and recorded");
    }
    points.add(u64::try_from(found.len()).unwrap());
    scenario.end();
}
