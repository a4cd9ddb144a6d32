//! The cost of claims for the API server, and the events that people see.

use crate::{
    claims::{claim, class, wait_bound, wait_nothing_left},
    controllers::{self, AGENT_PORT, CONTROLLER_PORT, PLAIN},
    scenario::Scenario,
};
use flexvol_testing::{Need, Points, tests};
use serde_json::json;

tests! {
    "claims: a claim costs 14 requests to the API server, 8 when it grows and 13 when it goes, unless writes meet", &[Need::Root]
        => requests_of_claims;
    "claims: status, metrics and probes say what there is", &[Need::Root] => seen;
}

/// Number of claims that share requests made only once.
const CLAIMS: u64 = 10;

/// Fetches a page of one of the two processes.
fn page(scenario: &Scenario, port: &str, path: &str) -> String {
    let url = format!("http://127.0.0.1:{port}{path}");
    scenario.lab().run("/bin/busybox", &["wget", "-qO-", &url])
}

/// The number of requests so far of both processes, without renewals of the controller's lease.
fn requests(scenario: &Scenario) -> u64 {
    let all = [CONTROLLER_PORT, AGENT_PORT].map(|port| page(scenario, port, "/metrics"));
    let lines = all.iter().enumerate().flat_map(|(process, text)| {
        text.lines().filter_map(move |line| {
            let count = line.strip_prefix("flexvol_api_requests_total{")?;
            // The controller uses the verb update only for its lease.
            let lease = process == 0 && count.contains("verb=\"update\"");
            (!lease).then(|| count.rsplit(' ').next()?.parse::<u64>().ok())?
        })
    });
    lines.sum()
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
        let made = requests(scenario);
        for name in &names {
            scenario.ask_for(name, 20);
        }
        for name in &names {
            scenario.wait_grown(name, 20);
        }
        let grown = requests(scenario);
        scenario
            .lab()
            .kubectl(&["delete", "pvc", "--all", "--timeout=150s"]);
        wait_nothing_left(scenario);
        let gone = requests(scenario);
        let each = |from: u64, to: u64| (to - from).div_ceil(CLAIMS);
        let costs = [each(before, made), each(made, grown), each(grown, gone)];
        println!(
            "flexvol-controller: {} requests make a volume, {} grow it, {} delete it",
            costs[0], costs[1], costs[2]
        );
        // After a conflict everything is read and written again. The limits allow one conflict for every three writes.
        assert!(
            costs[0] <= 16 && costs[1] <= 9 && costs[2] <= 16,
            "{costs:?}"
        );
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
