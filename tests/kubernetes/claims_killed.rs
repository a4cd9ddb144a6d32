//! Controller and agent are killed before and after each of their writes during the life of a claim and a set.

use crate::{
    claims::{Round, claim, class},
    claims_of_sets::set_of_data,
    controllers::{ExitPoint, PLAIN, Program, Running, plain_volumes, writes_of},
    scenario::Scenario,
    webhooks::{MONTHS, with},
    webhooks_of_sets::apply,
};
use flexvol_testing::{Need, Points, Random, budget, tests};
use serde_json::{Value, json};
use std::time::Instant;

tests! {
    "claims: controller and agent killed before or after any write, a claim and a set live and go, each claim with one storage", &[Need::Root]
        => killed;
}

/// The single claim, and those of the set.
const CLAIMS: [&str; 3] = ["alone", "data-db-0", "data-db-1"];

/// A set of two pods with one claim of this size each. The pods are never scheduled.
fn sized(size: &str) -> Value {
    let mut set = set_of_data("plain");
    let template = &mut set["spec"]["volumeClaimTemplates"][0];
    template["spec"]["resources"]["requests"]["storage"] = size.into();
    set["spec"]["template"]["spec"]["nodeSelector"] = json!({"no": "node"});
    set
}

fn killed(points: &Points) {
    with(MONTHS, |scenario, running| {
        scenario.apply(&[class("plain", PLAIN, false, &json!({}))]);
        let mut all = Vec::new();
        for program in [Program::Controller, Program::Agent] {
            assert!(!live(scenario, running, program, ExitPoint::NEVER));
            let writes = writes_of(scenario, program);
            println!("{program:?}: {writes} writes in a life");
            assert!(writes >= 9, "three claims need more than {writes} writes");
            let each =
                (1..=writes).flat_map(|write| [ExitPoint::Before(write), ExitPoint::After(write)]);
            all.extend(each.map(|end| (program, end)));
        }
        Random::new(budget().seed).shuffle(&mut all);
        let started = Instant::now();
        let (mut tried, mut reached) = (0, 0);
        for (program, end) in &all {
            if tried >= 2 && !budget().allows(started) {
                break;
            }
            // A life may need fewer writes than the first one. Then nothing was killed.
            reached += u64::from(live(scenario, running, *program, *end));
            tried += 1;
        }
        assert!(reached > 0, "nothing was killed in {tried} lives");
        points.report("flexvol-controller", reached, all.len(), "kills at writes");
    });
}

/// Makes, grows and deletes a claim, and a set with two claims, while a program ends once. Returns whether it
/// did end.
fn live(scenario: &Scenario, running: &Running, program: Program, end: ExitPoint) -> bool {
    println!("{program:?} ends {end:?}");
    let lab = scenario.lab();
    let start = |end: Option<ExitPoint>| match program {
        Program::Controller => running.restart_with_webhooks(scenario, MONTHS, end),
        Program::Agent => running.restart_agent(scenario, end),
    };
    start(Some(end));
    let mut round = Round::of(scenario, program, || start(None));
    scenario.apply(&[claim(CLAIMS[0], "plain", 10), sized("10Mi")]);
    let all_are = |what: &dyn Fn(&Value) -> bool| {
        let text = lab.kubectl(&["get", "pvc", "--output=json"]);
        let found: Value = serde_json::from_str(&text).unwrap();
        let found = found["items"].as_array().unwrap();
        found.len() == CLAIMS.len() && found.iter().all(what)
    };
    round.eventually("all claims to be bound", || {
        all_are(&|claim| claim["status"]["phase"] == "Bound")
    });
    assert_eq!(plain_volumes(scenario).len(), CLAIMS.len());
    scenario.ask_for(CLAIMS[0], 20);
    round.eventually("the edited template to be taken", || {
        apply(scenario, &sized("20Mi"), "").is_ok()
    });
    round.eventually("all claims to have grown", || {
        all_are(&|claim| {
            let status = &claim["status"];
            status["capacity"]["storage"] == "20Mi"
                && !status["conditions"].to_string().contains("Resiz")
        })
    });
    assert_eq!(plain_volumes(scenario).len(), CLAIMS.len());
    lab.kubectl(&["delete", "statefulset", "db", "--timeout=60s"]);
    lab.kubectl(&["delete", "pods", "--all", "--timeout=60s"]);
    lab.kubectl(&["delete", "pvc", "--all", "--wait=false"]);
    round.eventually("no object to be left", || {
        let kinds = "persistentvolumeclaims,persistentvolumes,nodevolumes";
        let left = lab.kubectl(&["get", kinds, "--output=name"]);
        left.trim().is_empty()
    });
    assert!(plain_volumes(scenario).is_empty());
    // It may have ended at its last write, which no wait noticed.
    let killed = round.killed || !program.runs(scenario);
    start(None);
    killed
}
