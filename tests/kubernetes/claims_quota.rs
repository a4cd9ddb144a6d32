//! Quota of claims that grow.

use crate::{
    claims::{LOWERS, claim, class, delete_claim, stop_expander, wait_bound, wait_nothing_left},
    controllers::{self, PLAIN},
    lab,
};
use flexvol_testing::{Need, Points, tests};
use serde_json::json;

tests! {
    "claims: what quota counts is never exceeded by a claim that is lowered while it grows", &[Need::Root]
        => lowered;
}

/// Kubernetes' own expander would allocate what is requested. It does not run where the driver is not installed beside
/// kube-controller-manager.
fn lowered(_: &Points) {
    controllers::with(|scenario, running| {
        let without = stop_expander(scenario);
        let lab = scenario.lab();
        scenario.apply(&[
            class("plain", PLAIN, false, &json!({})),
            json!({
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "storage", "namespace": "default"},
                "spec": {"hard": {"requests.storage": "50Mi"}},
            }),
        ]);
        let used = |size: &str| {
            let quota = scenario.get("default", "resourcequota", "storage");
            quota["status"]["used"]["requests.storage"] == size
        };
        scenario.eventually("the quota to count", || used("0"));
        scenario.apply(&[claim("data", "plain", 10)]);
        wait_bound(scenario, "data");
        // The storage grows while its agent is away.
        running.kill_agent(scenario);
        let ordered = |mebibytes: u64| {
            let all = lab
                .cluster()
                .kubectl(&["get", "nodevolumes", "--output=yaml"]);
            all.is_ok_and(|all| all.contains(&format!("    size: {}\n", mebibytes << 20)))
        };
        scenario.ask_for("data", 40);
        scenario.eventually("more to be ordered", || ordered(40));
        if lab::version() >= LOWERS.parse().unwrap() {
            // Less is not ordered, because the storage may have grown.
            scenario.ask_for("data", 20);
            let more = lab.cluster().apply(&[claim("more", "plain", 20)]);
            let refused = format!("{:#}", more.unwrap_err());
            assert!(refused.contains("exceeded quota"), "{refused}");
        }
        running.restart_agent(scenario, None);
        scenario.wait_grown("data", 40);
        scenario.eventually("what was measured to be counted", || used("40Mi"));
        scenario.apply(&[claim("more", "plain", 10)]);
        wait_bound(scenario, "more");
        delete_claim(scenario, "more");
        delete_claim(scenario, "data");
        lab.kubectl(&["delete", "resourcequota", "storage"]);
        wait_nothing_left(scenario);
        without.back();
    });
}
