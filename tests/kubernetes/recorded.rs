//! The calls of each release of Kubernetes in a fixed story, compared with the release's recording in
//! `tests/fixtures/calls`. `FLEXVOL_BLESS=1` records them anew.

use crate::{
    calls::{Call, calls},
    lab::{BLOCK, DISK, version},
    objects::{pod, pod_with},
    scenario::Scenario,
};
use flexvol_lab::kubernetes::Component;
use flexvol_testing::{Need, Points, Recorded, tests};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{collections::BTreeSet, env, fs, path::PathBuf};

tests! {
    "this release makes every kind of call that its recording has, and no other", &[Need::Root]
        => story;
}

/// Initial size of a volume in MiB, and the size of each growth.
const FIRST: u64 = 320;
const STEP: u64 = 64;

/// A running story. It assigns calls to the chapters in which they were made.
struct Story {
    scenario: Scenario,
    seen: usize,
    lines: Vec<Value>,
}

impl Story {
    fn begin() -> Self {
        let scenario = Scenario::begin();
        // These are asked once for all scenarios: `init`, and callouts that are Not supported.
        let all = calls(scenario.lab());
        let mut asked = BTreeSet::new();
        let once = all.iter().filter(|call| {
            let again = call.callout() == "init" || call.reply["status"] == "Not supported";
            // Excludes the agent of earlier tests. The kernel cuts process names to fifteen characters.
            let is_ours = call.caller == "flexvol-control";
            again && !is_ours && asked.insert((&call.caller, &call.driver, call.callout()))
        });
        let lines = once.map(|call| line("once", call)).collect();
        Story {
            seen: all.len(),
            lines,
            scenario,
        }
    }

    /// Ends a chapter.
    fn chapter(&mut self, name: &str) {
        let all = calls(self.scenario.lab());
        self.lines
            .extend(all[self.seen..].iter().map(|call| line(name, call)));
        self.seen = all.len();
    }
}

/// A line of a recording.
fn line(chapter: &str, call: &Call) -> Value {
    let mut line = call.line.clone();
    line["scenario"] = chapter.into();
    line
}

fn story(points: &Points) {
    let mut story = Story::begin();
    attached(&mut story);
    mounted(&mut story);
    inline(&mut story);
    full(&mut story);
    let release = version().to_string();
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/calls")
        .join(format!("{}.jsonl", release.trim_start_matches('v')));
    if env::var_os("FLEXVOL_BLESS").is_some() {
        let text: String = story.lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(&file, text).unwrap();
    }
    let known = fs::read_to_string(&file)
        .unwrap_or_else(|e| panic!("{}: {e}; record it with FLEXVOL_BLESS=1", file.display()));
    let known: BTreeSet<_> = known
        .lines()
        .map(|line| layout(&serde_json::from_str(line).unwrap()))
        .collect();
    let found: BTreeSet<_> = story.lines.iter().map(layout).collect();
    let new: Vec<_> = found.difference(&known).collect();
    let missing: Vec<_> = known.difference(&found).collect();
    assert!(
        new.is_empty() && missing.is_empty(),
        "not in the recording: {new:#?}\nonly in the recording: {missing:#?}"
    );
    points.add(u64::try_from(found.len()).unwrap());
    story.scenario.end();
}

/// The part of a call that is the same in every run: caller, callout and kinds of arguments.
fn layout(line: &Value) -> String {
    let recorded = Recorded::of(line);
    format!(
        "{} {} {} {}",
        recorded.caller,
        recorded.driver,
        recorded.callout,
        recorded.layout.join(" ")
    )
}

/// An attached volume: grown before its pod starts, grown while it runs, and removed.
fn attached(story: &mut Story) {
    let it = &story.scenario;
    it.volume(BLOCK, "v1", FIRST);
    it.ask_for("v1", FIRST + STEP);
    it.wait_pending("v1");
    let mut q1 = pod("q1", "v1");
    q1["spec"]["securityContext"] = json!({"fsGroup": 2000});
    it.run_pod(&q1);
    it.wait_grown("v1", FIRST + STEP);
    story.chapter("attach-offline-expand");
    let it = &story.scenario;
    it.ask_for("v1", FIRST + 2 * STEP);
    it.wait_grown("v1", FIRST + 2 * STEP);
    it.eventually("the controller to ask what is attached", || {
        let all = calls(it.lab());
        all.iter().any(|call| call.callout() == "isattached")
    });
    story.chapter("attach-online-expand");
    let it = &story.scenario;
    it.delete_pod(&q1);
    it.eventually("the volume to be detached", || {
        !it.calls(&["detach"], "v1").is_empty()
    });
    story.chapter("attach-teardown");
}

/// A volume without attach: mounted, grown, removed, and mounted read-only.
fn mounted(story: &mut Story) {
    let it = &story.scenario;
    it.volume(DISK, "v2", FIRST);
    let mut q2 = pod("q2", "v2");
    q2["spec"]["securityContext"] = json!({"fsGroup": 2000});
    it.run_pod(&q2);
    story.chapter("mount-only");
    let it = &story.scenario;
    it.ask_for("v2", FIRST + STEP);
    it.wait_grown("v2", FIRST + STEP);
    story.chapter("mount-only-online-expand");
    let it = &story.scenario;
    it.delete_pod(&q2);
    story.chapter("mount-only-teardown");
    let it = &story.scenario;
    let mut q4 = pod("q4", "v2");
    q4["spec"]["volumes"][0]["persistentVolumeClaim"]["readOnly"] = true.into();
    it.run_pod(&q4);
    it.delete_pod(&q4);
    story.chapter("readonly");
}

/// An inline volume of a pod with a secret, across a restart of kubelet.
fn inline(story: &mut Story) {
    let it = &story.scenario;
    it.volume(DISK, "v3", FIRST);
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": DISK, "metadata": {"name": "key", "namespace": "default"}, "stringData": {"password": "not for the record"}});
    let source = json!({"flexVolume": {"driver": DISK, "fsType": "xfs", "options": it.options("v3"), "secretRef": {"name": "key"}}});
    let mut q3 = pod_with("q3", &source);
    q3["spec"]["volumes"][0]["name"] = "v3".into();
    q3["spec"]["containers"][0]["volumeMounts"][0]["name"] = "v3".into();
    it.apply(&[secret]);
    it.run_pod(&q3);
    story.chapter("inline-secret");
    let it = &story.scenario;
    let cluster = it.lab().cluster();
    cluster.stop(Component::Kubelet, Signal::SIGTERM).unwrap();
    cluster.start(Component::Kubelet).unwrap();
    cluster.wait_ready().unwrap();
    story.chapter("kubelet-restart");
    let it = &story.scenario;
    it.delete_pod(&q3);
    story.chapter("inline-teardown-after-restart");
}

/// A growth that fails until there is space.
fn full(story: &mut Story) {
    let it = &story.scenario;
    it.volume(DISK, "v5", FIRST);
    let q5 = pod("q5", "v5");
    it.run_pod(&q5);
    let filler = it.fill_disk(96);
    it.ask_for("v5", FIRST + STEP);
    let answered = |succeeded: bool| {
        let calls = it.calls(&["expandfs"], "v5");
        calls
            .iter()
            .filter(|call| call.succeeded() == succeeded)
            .count()
    };
    it.eventually("the growth to fail three times", || answered(false) >= 3);
    fs::remove_file(filler).unwrap();
    it.wait_grown("v5", FIRST + STEP);
    story.chapter("expandfs-fails");
    story.scenario.delete_pod(&q5);
}
