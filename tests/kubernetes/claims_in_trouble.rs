//! Claims beside misbehaving drivers, nodes and leaders.

use crate::{
    claims::{
        LOWERS, claim, class, classes, condition, delete_claim, wait_bound, wait_nothing_left,
    },
    controllers::{self, ExitPoint, PLAIN, Running, plain_volumes},
    lab,
    objects::pod,
};
use flexvol_lab::kubernetes::PLUGINS;
use flexvol_testing::{Need, Points, tests};
use nix::sys::signal::Signal;
use serde_json::json;
use std::{fs, thread, time::Duration};

tests! {
    "claims: a claim grows without a pod where there is no file system to grow, and never shrinks", &[Need::Root]
        => plain;
    "claims: a driver that hangs, babbles or makes too little is told of, and what it made goes with the claim", &[Need::Root]
        => faults;
    "claims: a claim waits while no node has its driver, says so, and is bound once one has", &[Need::Root]
        => driverless;
    "claims: a claim deleted while its storage is made leaves nothing", &[Need::Root]
        => deleted_early;
    "claims: a volume that says Retain keeps its storage when claim and volume go", &[Need::Root]
        => retained;
    "claims: growth that finds no room says so on the claim, and a lower request is had", &[Need::Root]
        => no_room;
    "claims: the agent killed after any write, or in a driver's call, is no worse than late", &[Need::Root]
        => agent_killed;
    "claims: a leader that was stopped writes nothing when it goes on, and another has led meanwhile", &[Need::Root]
        => two_leaders;
}

fn plain(_: &Points) {
    controllers::with(|scenario, _| {
        let plain = |name: &str, grows: bool| {
            let mut class = class(name, PLAIN, false, &json!({}));
            class["allowVolumeExpansion"] = grows.into();
            class
        };
        scenario.apply(&[plain("plain", true), plain("fixed", false)]);
        scenario.apply(&[claim("grows", "plain", 10), claim("stays", "fixed", 10)]);
        let volume = wait_bound(scenario, "grows");
        wait_bound(scenario, "stays");
        let options = &scenario.get("default", "persistentvolume", &volume)["spec"]["flexVolume"];
        assert_eq!(options["options"]["flavour"], "plain");
        scenario.ask_for("grows", 20);
        scenario.wait_grown("grows", 20);
        let volume = scenario.get("default", "persistentvolume", &volume);
        assert_eq!(volume["spec"]["capacity"]["storage"], "20Mi");
        let app = pod("app", "grows");
        scenario.run_pod(&app);
        assert_eq!(
            scenario.exec(&app, "cat /data/size").trim(),
            (20 << 20).to_string()
        );
        scenario.delete_pod(&app);
        // The API server refuses both for any provisioner.
        for (name, size, why) in [
            ("stays", "20Mi", "must support resize"),
            ("grows", "15Mi", "less than"),
        ] {
            let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}}).to_string();
            let patch = ["patch", "pvc", name, "--patch", &patch];
            let refused = scenario.lab().cluster().kubectl(&patch).unwrap_err();
            assert!(format!("{refused:#}").contains(why), "{name}: {refused:#}");
        }
        for name in ["grows", "stays"] {
            delete_claim(scenario, name);
        }
        wait_nothing_left(scenario);
    });
}

fn faults(points: &Points) {
    controllers::with(|scenario, _| {
        for (fault, why) in [
            ("hangs", "did not end in 10 s, and was killed"),
            ("babbles", "answered no JSON"),
            ("small", "no such volume"),
        ] {
            scenario.apply(&[class(fault, PLAIN, false, &json!({"fault": fault}))]);
            scenario.apply(&[claim(fault, fault, 10)]);
            scenario.wait_event("default", fault, why);
            assert_eq!(
                scenario.claim("default", fault)["status"]["phase"],
                "Pending"
            );
            delete_claim(scenario, fault);
            wait_nothing_left(scenario);
            points.add(1);
        }
    });
}

fn driverless(_: &Points) {
    controllers::with(|scenario, running| {
        let place = scenario.lab().cluster().file(PLUGINS);
        let driver = place.join("lab.example~plain/plain");
        let away = driver.with_file_name(".away");
        // The driver is removed for a while.
        fs::rename(&driver, &away).unwrap();
        running.restart_with_short_heartbeats(scenario);
        // Until the agent reports this, the controller may still order storage of the node.
        scenario.eventually("the agent to miss the driver", || {
            let node = scenario.lab().cluster().object("", "storagenode", "node");
            node.is_ok_and(|node| node["status"]["drivers"].get(PLAIN).is_none())
        });
        scenario.apply(&[class("plain", PLAIN, false, &json!({}))]);
        scenario.apply(&[claim("early", "plain", 10)]);
        let why = "no node has driver lab.example/plain";
        scenario.wait_event("default", "early", why);
        let status = scenario.lab().run("flexvol-controller", &["status"]);
        let line = status
            .lines()
            .find(|line| line.starts_with("default/early"));
        let waits = line.is_some_and(|line| line.contains("waiting") && line.contains(why));
        assert!(waits, "{status}");
        fs::rename(&away, &driver).unwrap();
        wait_bound(scenario, "early");
        delete_claim(scenario, "early");
        wait_nothing_left(scenario);
    });
}

fn deleted_early(_: &Points) {
    controllers::with(|scenario, _| {
        scenario.apply(&[class("slow", PLAIN, false, &json!({"fault": "slow"}))]);
        scenario.apply(&[claim("early", "slow", 10)]);
        scenario.eventually("the storage to be ordered", || {
            let orders = scenario
                .lab()
                .kubectl(&["get", "nodevolumes", "--output=name"]);
            !orders.trim().is_empty()
        });
        assert!(plain_volumes(scenario).is_empty(), "it is slow");
        delete_claim(scenario, "early");
        wait_nothing_left(scenario);
    });
}

fn retained(_: &Points) {
    controllers::with(|scenario, _| {
        let mut keeps = class("keeps", lab::DISK, false, &json!({"pool": "default"}));
        keeps["reclaimPolicy"] = "Retain".into();
        scenario.apply(&[keeps]);
        scenario.apply(&[claim("kept", "keeps", 320)]);
        let volume = wait_bound(scenario, "kept");
        delete_claim(scenario, "kept");
        scenario.eventually("the volume to be released", || {
            scenario.get("default", "persistentvolume", &volume)["status"]["phase"] == "Released"
        });
        // Long enough for a controller that would delete it.
        thread::sleep(Duration::from_secs(3));
        assert_eq!(scenario.volumes().len(), 1);
        scenario
            .lab()
            .kubectl(&["delete", "persistentvolume", &volume, "--timeout=60s"]);
        scenario.eventually("the NodeVolume to go", || {
            let left = scenario
                .lab()
                .kubectl(&["get", "nodevolumes", "--output=name"]);
            left.trim().is_empty()
        });
        assert_eq!(
            scenario.volumes()[0]["name"],
            volume.as_str(),
            "its storage stays"
        );
    });
}

fn no_room(_: &Points) {
    controllers::with(|scenario, _| {
        classes(scenario);
        scenario.apply(&[claim("crowded", "at-once", 320)]);
        let volume = wait_bound(scenario, "crowded");
        let app = pod("app", "crowded");
        scenario.run_pod(&app);
        let before = scenario.size_in(&app);
        let filler = scenario.fill_disk(200);
        scenario.ask_for("crowded", 640);
        scenario.wait_event("default", "crowded", "640Mi was asked for");
        assert_eq!(scenario.image_bytes(&volume), 320 << 20);
        let failure = || condition(scenario, "crowded", "ControllerResizeError");
        scenario.eventually("the claim to say it too", || failure().is_some());
        let said = failure().unwrap();
        assert_eq!(said["status"], "True");
        assert_eq!(said["reason"], "VolumeResizeFailed");
        let why = said["message"].as_str().unwrap();
        assert!(why.contains("640Mi was asked for"), "{why}");
        // Kubernetes' own expander reports something else in the claim, but the two must not alternate.
        let version =
            || scenario.claim("default", "crowded")["metadata"]["resourceVersion"].clone();
        let mut versions = vec![version()];
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(500));
            versions.push(version());
        }
        versions.dedup();
        println!(
            "while it fails its claim was written {} times in 10 s",
            versions.len() - 1
        );
        assert!(versions.len() <= 4, "{versions:?}");
        // Older API servers let no request be lowered.
        let asked = if lab::version() >= LOWERS.parse().unwrap() {
            scenario.ask_for("crowded", 384);
            scenario.eventually("the lower request to be had", || {
                scenario.image_bytes(&volume) == 384 << 20
            });
            384
        } else {
            fs::remove_file(&filler).unwrap();
            640
        };
        scenario.wait_grown("crowded", asked);
        assert_eq!(scenario.image_bytes(&volume), asked << 20);
        assert_eq!(scenario.size_in(&app) - before, asked - 320);
        let size = &scenario.get("default", "persistentvolume", &volume)["spec"]["capacity"];
        assert_eq!(size["storage"], format!("{asked}Mi"));
        scenario.eventually("the claim to say it no more", || failure().is_none());
        scenario.delete_pod(&app);
        delete_claim(scenario, "crowded");
        wait_nothing_left(scenario);
    });
}

fn agent_killed(points: &Points) {
    controllers::with(|scenario, running| {
        classes(scenario);
        scenario.apply(&[class("slow", PLAIN, false, &json!({"fault": "slow"}))]);
        for writes in 1..=5 {
            running.restart_agent(scenario, Some(ExitPoint::After(writes)));
            scenario.apply(&[claim("short", "at-once", 320)]);
            let again = |what: &str, mut question: Box<dyn FnMut() -> bool + '_>| {
                scenario.eventually(what, || {
                    if !running.agent_runs(scenario) {
                        running.restart_agent(scenario, None);
                    }
                    question()
                });
            };
            let phase = || scenario.claim("default", "short")["status"]["phase"].clone();
            again("the claim to be bound", Box::new(|| phase() == "Bound"));
            assert_eq!(scenario.volumes().len(), 1, "after {writes} writes");
            scenario
                .lab()
                .kubectl(&["delete", "pvc", "short", "--wait=false"]);
            let left = || {
                scenario
                    .lab()
                    .kubectl(&["get", "nodevolumes,pv", "--output=name"])
            };
            again("nothing to be left", Box::new(|| left().trim().is_empty()));
            assert!(scenario.volumes().is_empty(), "after {writes} writes");
            points.add(1);
        }
        running.restart_agent(scenario, None);
        scenario.apply(&[claim("cut", "slow", 10)]);
        scenario.eventually("the driver to run", || {
            scenario
                .lab()
                .run("ps", &["-e", "--format", "args"])
                .contains("plain provision")
        });
        running.restart_agent(scenario, None);
        let driver = scenario.lab().run("ps", &["-e", "--format", "args"]);
        let calls = driver
            .lines()
            .filter(|line| line.contains("plain provision"))
            .count();
        assert!(calls <= 1, "the first agent's driver goes on: {driver}");
        wait_bound(scenario, "cut");
        delete_claim(scenario, "cut");
        wait_nothing_left(scenario);
    });
}

fn two_leaders(_: &Points) {
    controllers::with(|scenario, running: &Running| {
        scenario.apply(&[class("plain", PLAIN, false, &json!({}))]);
        running.start_second(scenario);
        let leader = || {
            let holder = "--output=jsonpath={.spec.holderIdentity}";
            let lease = [
                "get",
                "lease",
                "flexvol-controller",
                "--namespace=flexvol",
                holder,
            ];
            scenario.lab().cluster().kubectl(&lease).unwrap_or_default()
        };
        scenario.eventually("the first to lead", || leader() == "one");
        running.signal_controller(scenario, Signal::SIGSTOP);
        scenario.eventually("the second to lead", || leader() == "two");
        scenario.apply(&[claim("data", "plain", 10)]);
        wait_bound(scenario, "data");
        running.signal_controller(scenario, Signal::SIGCONT);
        scenario.eventually("the first to end", || !running.controller_runs(scenario));
        assert_eq!(leader(), "two");
        delete_claim(scenario, "data");
        wait_nothing_left(scenario);
        running.stop_second(scenario);
    });
}
