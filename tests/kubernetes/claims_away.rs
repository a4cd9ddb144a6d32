//! A silent node, and a node that is gone.

use crate::{
    accidents::Stopped,
    claims::{claim, class, delete_claim, wait_bound, wait_nothing_left},
    controllers::{self, PLAIN, plain_volumes},
    scenario::Scenario,
};
use flexvol_lab::kubernetes::Component;
use flexvol_testing::{Need, Points, tests};
use nix::sys::signal::Signal;
use serde_json::json;
use std::fs;

tests! {
    "claims: a node that is silent gets no volume, who waits for it is told, and all goes on when it is back", &[Need::Root]
        => silent;
    "claims: storage on a node that is gone stays until the node is back, or a person says that it is lost", &[Need::Root]
        => gone;
}

fn silent(points: &Points) {
    controllers::with(|scenario, running| {
        running.restart_with_short_heartbeats(scenario);
        scenario.apply(&[class("plain", PLAIN, false, &json!({}))]);
        scenario.apply(&[claim("grows", "plain", 10)]);
        wait_bound(scenario, "grows");
        running.kill_agent(scenario);
        // The first is ordered before the silence is known, and waits. The second is not ordered.
        scenario.apply(&[claim("early", "plain", 10)]);
        scenario.ask_for("grows", 20);
        let away = "node node is ready, but its agent was last heard of at 20";
        for name in ["early", "grows"] {
            scenario.wait_event("default", name, away);
            points.add(1);
        }
        scenario.apply(&[claim("late", "plain", 10)]);
        let none = "no node has driver lab.example/plain; of nodes that do not count, the agent of node node was last heard of at 20";
        scenario.wait_event("default", "late", none);
        assert_eq!(
            orders(scenario).len(),
            2,
            "the late one is ordered of nobody"
        );
        assert_eq!(plain_volumes(scenario).len(), 1);
        points.add(1);
        running.restart_agent_with_short_heartbeats(scenario);
        for name in ["early", "late"] {
            wait_bound(scenario, name);
            points.add(1);
        }
        scenario.wait_grown("grows", 20);
        assert_eq!(plain_volumes(scenario).len(), 3);
        for name in ["grows", "early", "late"] {
            delete_claim(scenario, name);
        }
        wait_nothing_left(scenario);
    });
}

fn orders(scenario: &Scenario) -> Vec<String> {
    let names = scenario
        .lab()
        .kubectl(&["get", "nodevolumes", "--output=name"]);
    names.lines().map(str::to_owned).collect()
}

fn gone(points: &Points) {
    controllers::with(|scenario, running| {
        let lab = scenario.lab();
        running.restart_with_short_heartbeats(scenario);
        scenario.apply(&[class("plain", PLAIN, false, &json!({}))]);
        scenario.apply(&[claim("back", "plain", 10), claim("lost", "plain", 10)]);
        let [back, lost] = ["back", "lost"].map(|name| wait_bound(scenario, name));
        running.kill_agent(scenario);
        let kubelet = Stopped::by(scenario, Component::Kubelet, Signal::SIGKILL);
        lab.kubectl(&["delete", "node", "node"]);
        for name in ["back", "lost"] {
            delete_claim(scenario, name);
        }
        let is_gone =
            "node node is not in the cluster any more, and its agent was last heard of at 20";
        for volume in [&back, &lost] {
            scenario.wait_event("default", volume, is_gone);
            points.add(1);
        }
        assert_eq!(orders(scenario).len(), 2);
        assert_eq!(plain_volumes(scenario).len(), 2);
        // The command from the event.
        let events = scenario.events("default", &lost);
        let (_, command) = events.split_once("its storage is gone: ").unwrap();
        let command = command.lines().next().unwrap().trim();
        assert!(command.contains(&lost), "{command}");
        lab.run("/bin/sh", &["-c", command]);
        let left = format!("nodevolume.flexvol.dev/{back}");
        scenario.eventually("what was said to be lost to be forgotten", || {
            orders(scenario) == [left.clone()]
        });
        let has_lost = ["get", "persistentvolume", &lost];
        scenario.eventually("its volume to go", || {
            lab.cluster().kubectl(&has_lost).is_err()
        });
        points.add(1);
        kubelet.start();
        scenario.eventually("the node to be back", || {
            lab.cluster().kubectl(&["get", "node", "node"]).is_ok()
        });
        // The token of an agent is bound to its node, and the node is a new object now.
        controllers::install(lab);
        running.restart_agent_with_short_heartbeats(scenario);
        scenario.eventually("the storage to go", || {
            plain_volumes(scenario) == [lost.clone()]
        });
        let storage = format!("/var/lib/lab/plain/{lost}");
        fs::remove_dir_all(lab.cluster().file(&storage)).unwrap();
        wait_nothing_left(scenario);
        points.add(1);
    });
}
