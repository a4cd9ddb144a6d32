//! The cost of claims for the API server, and the events that people see.

use crate::{
    claims::{claim, class, wait_bound, wait_nothing_left},
    controllers::{self, AGENT_PORT, CONTROLLER_PORT, PLAIN},
    scenario::Scenario,
};
use flexvol_testing::{Need, Points, tests};
use serde_json::json;
use std::collections::BTreeMap;

tests! {
    "claims: a claim costs 14 requests to the API server, 8 when it grows and 13 when it goes, unless writes meet", &[Need::Root]
        => requests_of_claims;
    "claims: status, metrics and probes say what there is", &[Need::Root] => seen;
}

/// Number of claims that share requests made only once.
const CLAIMS: u64 = 10;

/// What a claim costs in a phase of its life.
struct Cost {
    phase: &'static str,
    writes: u64,
    reads: u64,
    /// Whether Kubernetes' own expander writes too. Where it is late, the controller writes the claim's allocated size
    /// and the volume's capacity in its place.
    expands: bool,
}

const MADE: Cost = Cost {
    phase: "made",
    writes: 8,
    reads: 6,
    expands: false,
};
const GROWN: Cost = Cost {
    phase: "grown",
    writes: 4,
    reads: 4,
    expands: true,
};
const GONE: Cost = Cost {
    phase: "deleted",
    writes: 6,
    reads: 7,
    expands: false,
};

impl Cost {
    /// Number of writes for all claims.
    fn writes(&self, made: &Requests) -> u64 {
        let patched = |resource: &str| {
            let kind = format!("verb=\"patch\",resource=\"{resource}\"");
            count(made, |made| made.contains(&kind))
        };
        // Each of them once at most, beside the one write of the claim that is the controller's own.
        let late = patched("persistentvolumes").min(CLAIMS)
            + patched("persistentvolumeclaims").clamp(CLAIMS, 2 * CLAIMS)
            - CLAIMS;
        self.writes * CLAIMS + if self.expands { late } else { 0 }
    }
}

/// The NodeVolume, the PersistentVolume, the claim before and after them, and the nodes.
const READS_OF_A_LOOK: u64 = 5;

/// How often each kind of request was made, by process and labels.
type Requests = BTreeMap<String, u64>;

/// Fetches a page of one of the two processes.
fn page(scenario: &Scenario, port: &str, path: &str) -> String {
    let url = format!("http://127.0.0.1:{port}{path}");
    scenario.lab().run("/bin/busybox", &["wget", "-qO-", &url])
}

/// The requests so far of both processes.
fn requests(scenario: &Scenario) -> Requests {
    let mut counts = Requests::new();
    for port in [CONTROLLER_PORT, AGENT_PORT] {
        for line in page(scenario, port, "/metrics").lines() {
            let Some(request) = line.strip_prefix("flexvol_api_requests_total") else {
                continue;
            };
            let (labels, count) = request.rsplit_once(' ').expect("a metric has a value");
            counts.insert(format!("{port}{labels}"), count.parse().expect("a count"));
        }
    }
    counts
}

fn is_read(kind: &str) -> bool {
    kind.contains("verb=\"get\"") || kind.contains("verb=\"list\"")
}

/// Whether a kind of request is made once for all claims.
fn is_shared(kind: &str) -> bool {
    ["watch", "leases", "storagenodes", "storageclasses"]
        .iter()
        .any(|all| kind.contains(all))
}

fn is_write(kind: &str) -> bool {
    !is_read(kind) && !is_shared(kind)
}

fn is_accepted_write(kind: &str) -> bool {
    is_write(kind) && kind.contains("code=\"20")
}

fn count(made: &Requests, is_counted: impl Fn(&str) -> bool) -> u64 {
    let counted = made.iter().filter(|(kind, _)| is_counted(kind));
    counted.map(|(_, count)| count).sum()
}

/// The requests between two moments.
fn between(from: &Requests, to: &Requests) -> Requests {
    let mut made = to.clone();
    for (kind, before) in from {
        *made.entry(kind.clone()).or_default() -= before;
    }
    made
}

/// The requests so far, once all writes are made: events are written last, and nobody waits for them.
fn requests_after(scenario: &Scenario, from: &Requests, cost: &Cost) -> Requests {
    scenario.eventually("all writes to be made", || {
        let made = between(from, &requests(scenario));
        count(&made, is_accepted_write) >= cost.writes(&made)
    });
    requests(scenario)
}

/// Checks how many requests each claim cost between two moments, without what is done once for all claims.
///
/// Writes are counted exactly. A volume is read again from the API server after a conflict, and while a watch is late;
/// a slow machine makes both more frequent. Such a look begins with the controller's read of the NodeVolume.
#[track_caller]
fn assert_cost(cost: &Cost, from: &Requests, to: &Requests) {
    let (phase, made) = (cost.phase, between(from, to));
    let written = count(&made, is_accepted_write);
    let refused = count(&made, is_write) - written;
    let read = count(&made, |kind| is_read(kind) && !is_shared(kind));
    let again = count(&made, |kind| {
        kind.starts_with(CONTROLLER_PORT) && kind.contains("verb=\"get\",resource=\"nodevolumes\"")
    });
    println!(
        "flexvol-controller: {CLAIMS} claims {phase} with {written} writes and {read} reads; {refused} writes were refused, and {again} looks repeated"
    );
    assert_eq!(written, cost.writes(&made), "{phase}: {made:#?}");
    assert!(
        refused <= again && again <= 2 * CLAIMS,
        "{phase}: {made:#?}"
    );
    assert!(
        read <= cost.reads * CLAIMS + READS_OF_A_LOOK * again,
        "{phase}: {made:#?}"
    );
}

fn requests_of_claims(_: &Points) {
    controllers::with(|scenario, _| {
        scenario.apply(&[class("plain", PLAIN, false, &json!({}))]);
        let names: Vec<_> = (0..CLAIMS)
            .map(|number| format!("claim-{number}"))
            .collect();
        let claims: Vec<_> = names.iter().map(|name| claim(name, "plain", 10)).collect();
        scenario.eventually("the node to be known", || {
            let seen = scenario
                .lab()
                .kubectl(&["get", "storagenodes", "--output=yaml"]);
            seen.contains(PLAIN)
        });
        let before = requests(scenario);
        scenario.apply(&claims);
        for name in &names {
            wait_bound(scenario, name);
        }
        let held = || {
            scenario
                .lab()
                .kubectl(&["get", "pvc", "--output=yaml"])
                .contains("flexvol.dev/")
        };
        scenario.eventually("all claims to be let go of", || !held());
        let made = requests_after(scenario, &before, &MADE);
        for name in &names {
            scenario.ask_for(name, 20);
        }
        for name in &names {
            scenario.wait_grown(name, 20);
        }
        let grown = requests_after(scenario, &made, &GROWN);
        scenario
            .lab()
            .kubectl(&["delete", "pvc", "--all", "--timeout=150s"]);
        wait_nothing_left(scenario);
        let gone = requests_after(scenario, &grown, &GONE);
        assert_cost(&MADE, &before, &made);
        assert_cost(&GROWN, &made, &grown);
        assert_cost(&GONE, &grown, &gone);
    });
}

fn seen(_: &Points) {
    controllers::with(|scenario, _| {
        scenario.apply(&[class("plain", PLAIN, false, &json!({}))]);
        scenario.apply(&[class("hangs", PLAIN, false, &json!({"fault": "hangs"}))]);
        let mut refused = claim("refused", "plain", 10);
        refused["spec"]["selector"] = json!({"matchLabels": {"a": "b"}});
        scenario.apply(&[
            claim("good", "plain", 10),
            claim("waits", "hangs", 10),
            refused,
        ]);
        wait_bound(scenario, "good");
        scenario.wait_event("default", "waits", "did not end");
        scenario.wait_event("default", "refused", "has a selector");
        let told = scenario.lab().run("flexvol-controller", &["status"]);
        let says = |claim: &str, state: &str, why: &str| {
            let line = told.lines().find(|line| line.starts_with(claim));
            let line = line.unwrap_or_else(|| panic!("{told}"));
            assert!(line.contains(state) && line.contains(why), "{told}");
        };
        says("default/waits", "being made", "did not end");
        says("default/refused", "waiting", "has a selector");
        assert!(!told.contains("default/good"), "{told}");
        assert!(told.ends_with("1 volumes are settled\n"), "{told}");
        crate::claims::delete_claim(scenario, "refused");
        let all = scenario
            .lab()
            .run("flexvol-controller", &["status", "--all"]);
        assert!(all.contains("default/good"), "{all}");
        for port in [CONTROLLER_PORT, AGENT_PORT] {
            for path in ["/healthz", "/readyz"] {
                assert_eq!(page(scenario, port, path), "ok\n");
            }
        }
        let agent = page(scenario, AGENT_PORT, "/metrics");
        let failed = r#"flexvol_operations_total{operation="provision",result="failed"}"#;
        assert!(agent.contains(failed), "{agent}");
        let took = r#"flexvol_call_seconds_count{driver="lab.example/plain",callout="provision"}"#;
        assert!(agent.contains(took), "{agent}");
        let controller = page(scenario, CONTROLLER_PORT, "/metrics");
        assert!(controller.contains("flexvol_leading 1"), "{controller}");
        let counted = [
            "claims_waiting",
            "volumes{state=\"creating\"}",
            "volumes{state=\"settled\"}",
            "volumes_failing",
        ];
        for metric in counted {
            scenario.eventually(&format!("{metric} to be counted"), || {
                let controller = page(scenario, CONTROLLER_PORT, "/metrics");
                let line = format!("flexvol_{metric} 1");
                controller.lines().any(|found| found == line)
            });
        }
        for name in ["good", "waits"] {
            crate::claims::delete_claim(scenario, name);
        }
        wait_nothing_left(scenario);
    });
}
