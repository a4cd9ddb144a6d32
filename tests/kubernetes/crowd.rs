//! Many pods at once.

use crate::{lab::DISK, objects::pod, scenario::Scenario};
use flexvol_testing::{Need, Points, tests};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, time::Instant};

tests! {
    "fifty pods start at once, each with its own volume, and end at once", &[Need::Root] => fifty;
}

const PODS: usize = 50;

#[allow(clippy::print_stdout, reason = "what it took is part of the report")]
fn fifty(points: &Points) {
    let scenario = Scenario::begin();
    let names: Vec<_> = (1..=PODS).map(|number| format!("crowd-{number}")).collect();
    let made = names.iter().map(|name| {
        let size = ["--size", "320Mi", "--with-storage-class"];
        let lab = scenario.lab();
        lab.flexvol(DISK, "create", &[&[name.as_str()], &size[..]].concat())
    });
    scenario.lab().apply_text(&made.collect::<String>());
    let pods: Vec<_> = names.iter().map(|name| writes_its_name(name)).collect();

    let started = Instant::now();
    scenario.apply(&pods);
    let mut uids = BTreeMap::new();
    scenario.eventually("all pods to run", || {
        uids = running(&scenario);
        uids.len() == PODS
    });
    let ran = started.elapsed();
    for name in &names {
        let volume = format!(
            "/var/lib/kubelet/pods/{}/volumes/lab.example~disk/{name}",
            uids[name]
        );
        let file = scenario.lab().cluster().node().path(&volume).join("name");
        let written = || fs::read_to_string(&file).is_ok_and(|text| text == format!("{name}\n"));
        scenario.eventually("the pod's own file in its own volume", written);
    }
    let started = Instant::now();
    let all = ["delete", "pods", "--all", "--timeout=150s"];
    scenario.lab().kubectl(&all);
    let ended = started.elapsed();

    let mounts = scenario.calls(&["mount"], "crowd-");
    let slowest = mounts.iter().map(|mount| mount.took).max().unwrap();
    assert!(mounts.iter().all(|mount| mount.succeeded()), "{mounts:?}");
    assert!(mounts.len() >= PODS, "{} mounts", mounts.len());
    points.add(PODS as u64);
    print!(
        "({PODS} pods ran after {:.1} s and were gone after {:.1} s, longest mount {slowest} ms) ",
        ran.as_secs_f64(),
        ended.as_secs_f64()
    );
    scenario.end();
}

fn writes_its_name(name: &str) -> Value {
    let mut pod = pod(name, name);
    let script = "hostname >/data/name && exec sleep infinity";
    pod["spec"]["containers"][0]["command"] = json!(["sh", "-c", script]);
    pod
}

/// The UIDs of the pods whose container is ready, by name.
fn running(scenario: &Scenario) -> BTreeMap<String, String> {
    let template = "--output=jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} \
                    {.status.containerStatuses[0].ready}{\"\\n\"}{end}";
    let text = scenario.lab().kubectl(&["get", "pods", template]);
    let lines = text.lines().filter_map(|line| line.strip_suffix(" true"));
    lines
        .filter_map(|line| line.split_once(' '))
        .map(|(name, uid)| (name.to_owned(), uid.trim().to_owned()))
        .collect()
}
