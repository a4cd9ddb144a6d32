//! Many claims at once.

use crate::{
    claims::{claim, classes, wait_nothing_left},
    controllers,
    objects::pod,
    scenario::Scenario,
};
use flexvol_testing::{Need, Points, budget, tests};
use serde_json::Value;
use std::time::Instant;

tests! {
    "claims: many claims with pods at once become volumes, grow together, and go", &[Need::Root]
        => storm;
}

/// Number of claims, unless every point is tried.
const CLAIMS: usize = 20;
const ALL_CLAIMS: usize = 50;

/// Number of these objects whose field has this value.
fn count(scenario: &Scenario, kind: &str, question: &str, word: &str) -> usize {
    let template = format!("--output=jsonpath={{range .items[*]}}{{{question}}}{{\"\\n\"}}{{end}}");
    let answers = scenario.lab().kubectl(&["get", kind, &template]);
    answers.lines().filter(|answer| *answer == word).count()
}

fn storm(points: &Points) {
    controllers::with(|scenario, _| {
        classes(scenario);
        let many = if budget().every_point {
            ALL_CLAIMS
        } else {
            CLAIMS
        };
        let names: Vec<_> = (1..=many).map(|number| format!("storm-{number}")).collect();
        let claims = |mebibytes: u64| -> Vec<Value> {
            let names = names.iter();
            names.map(|name| claim(name, "later", mebibytes)).collect()
        };
        let pods: Vec<_> = names.iter().map(|name| pod(name, name)).collect();
        let begun = Instant::now();
        scenario.apply(&claims(320));
        scenario.apply(&pods);
        scenario.eventually("all pods to be ready", || {
            count(
                scenario,
                "pods",
                ".status.containerStatuses[0].ready",
                "true",
            ) == many
        });
        let ready = begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        scenario.apply(&claims(352));
        scenario.eventually("all claims to have grown", || {
            count(scenario, "pvc", ".status.capacity.storage", "352Mi") == many
        });
        let grown = begun.elapsed().as_secs_f64();
        let volumes = scenario.volumes();
        let has = |volume: &&Value| volume["filesystem"] == 352_u64 << 20;
        assert_eq!(volumes.iter().filter(has).count(), many);
        let begun = Instant::now();
        let lab = scenario.lab();
        lab.kubectl(&["delete", "pods", "--all", "--timeout=150s"]);
        lab.kubectl(&["delete", "pvc", "--all", "--timeout=150s"]);
        wait_nothing_left(scenario);
        let gone = begun.elapsed().as_secs_f64();
        points.add(many as u64);
        print!(
            "({many} ready after {ready:.1} s, grown after {grown:.1} s, gone after {gone:.1} s) "
        );
    });
}
