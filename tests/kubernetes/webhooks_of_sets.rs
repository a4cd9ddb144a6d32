//! Stateful sets with edited claim templates.

use crate::{
    claims::{Round, class, wait_bound},
    claims_of_sets::{delete_set, ready, set},
    controllers::{ExitPoint, PLAIN, Program},
    lab::DISK,
    scenario::Scenario,
    webhooks::{MONTHS, refused, with},
};
use flexvol_testing::{Need, Points, tests};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs;

tests! {
    "webhooks: an edited claim template grows all claims of a set, however often it is applied, and hinders no other edit", &[Need::Root]
        => templates;
    "webhooks: the controller killed after any write, an edited claim template grows all claims all the same", &[Need::Root]
        => killed;
}

/// Kubernetes' own error about an edited template.
const STOCK: &str = "is invalid: spec";

/// The set of two pods, with these sizes in its claim templates.
fn sized(data: &str, log: &str) -> Value {
    let mut set = set();
    for (index, size) in [data, log].into_iter().enumerate() {
        let template = &mut set["spec"]["volumeClaimTemplates"][index];
        template["spec"]["resources"]["requests"]["storage"] = size.into();
    }
    set
}

/// Applies an object as people do, and returns the messages. `more` is an argument for kubectl.
pub fn apply(scenario: &Scenario, object: &Value, more: &str) -> Result<String, String> {
    let lab = scenario.lab();
    let file = "/var/lib/lab/set.json";
    fs::write(lab.cluster().file(file), object.to_string()).unwrap();
    let script = format!("kubectl apply {more} --filename={file} 2>&1");
    let mut command = lab.cluster().node().command("/bin/sh");
    let output = command.args(["-c", &script]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(words)
    } else {
        Err(words)
    }
}

fn templates(points: &Points) {
    with(MONTHS, |scenario, running| {
        let lab = scenario.lab();
        let pool = json!({"pool": "default"});
        scenario.apply(&[
            class("at-once", DISK, false, &pool),
            class("plain", PLAIN, false, &json!({})),
        ]);
        scenario.apply(&[set()]);
        ready(scenario, 2);
        let live = || scenario.get("default", "statefulset", "db");
        let annotation = |template: &str| {
            live()["metadata"]["annotations"][format!("grow.flexvol.dev/{template}")].clone()
        };
        let uids = "--output=jsonpath={.items[*].metadata.uid}";
        let pods = || lab.kubectl(&["get", "pods", "--selector=app=db", uids]);
        let before = pods();
        let made = live()["spec"]["volumeClaimTemplates"].clone();

        // Until the webhooks are known, Kubernetes refuses the edit.
        let mut told = String::new();
        scenario.eventually("an edited template to be accepted", || {
            match apply(scenario, &sized("352Mi", "1Gi"), "") {
                Ok(words) => {
                    told = words;
                    true
                }
                Err(words) => {
                    assert!(words.contains(STOCK), "{words}");
                    false
                }
            }
        });
        assert!(
            told.contains("its claims have 352Mi by annotation"),
            "{told}"
        );
        assert_eq!(live()["spec"]["volumeClaimTemplates"], made);
        for ordinal in 0..2 {
            scenario.wait_grown_to(&format!("data-db-{ordinal}"), "352Mi");
            scenario.wait_grown_to(&format!("log-db-{ordinal}"), "1Gi");
            points.add(2);
        }
        assert_eq!(pods(), before, "no pod was restarted");

        // Sets in these namespaces are left to Kubernetes.
        for namespace in ["kube-system", "flexvol"] {
            let within = |size: &str| {
                let mut set = sized(size, "1Gi");
                set["metadata"]["namespace"] = namespace.into();
                set["spec"]["replicas"] = 0.into();
                set
            };
            apply(scenario, &within("320Mi"), "").unwrap();
            let words = apply(scenario, &within("352Mi"), "").unwrap_err();
            assert!(words.contains(STOCK), "{words}");
            let delete = ["delete", "statefulset", "db", "--namespace", namespace];
            lab.kubectl(&delete);
            points.add(1);
        }

        // The same size again, a former one, and one between them change nothing.
        let generation = live()["metadata"]["generation"].clone();
        for size in ["352Mi", "320Mi", "330Mi"] {
            let told = apply(scenario, &sized(size, "1Gi"), "").unwrap();
            assert_eq!(annotation("data"), "352Mi");
            assert_eq!(
                told.contains("volumes do not shrink"),
                size == "330Mi",
                "{told}"
            );
            points.add(1);
        }
        assert_eq!(live()["metadata"]["generation"], generation);
        let server_side = "--server-side --force-conflicts";
        for _ in 0..2 {
            apply(scenario, &sized("360Mi", "1Gi"), server_side).unwrap();
            assert_eq!(annotation("data"), "360Mi");
            points.add(1);
        }
        for claim in ["data-db-0", "data-db-1"] {
            scenario.wait_grown_to(claim, "360Mi");
        }

        // Together with another edit, which creates a further claim.
        let mut more = sized("384Mi", "1Gi");
        more["spec"]["replicas"] = 3.into();
        more["spec"]["template"]["metadata"]["annotations"] = json!({"changed": "yes"});
        apply(scenario, &more, server_side).unwrap();
        for ordinal in 0..3 {
            let claim = format!("data-db-{ordinal}");
            scenario.eventually("the claim to be there", || {
                lab.cluster().kubectl(&["get", "pvc", &claim]).is_ok()
            });
            scenario.wait_grown_to(&claim, "384Mi");
            points.add(1);
        }
        lab.kubectl(&["rollout", "undo", "statefulset", "db"]);
        assert_eq!(
            live()["spec"]["template"]["metadata"]["annotations"],
            Value::Null
        );
        assert_eq!(
            annotation("data"),
            "384Mi",
            "what is rolled back shrinks nothing"
        );

        let annotate = |what: &str, why: &str| {
            refused(
                scenario,
                &["annotate", "--overwrite", "statefulset", "db", what],
                why,
            );
            points.add(1);
        };
        annotate(
            "grow.flexvol.dev/data=383Mi",
            "has 384Mi, and volumes do not shrink to 383Mi",
        );
        annotate("grow.flexvol.dev/data=100Mi", "are made with 320Mi");
        annotate("grow.flexvol.dev/data=much", "mend or remove it");
        annotate("grow.flexvol.dev/nothing=1Gi", "no claim template");
        annotate("grow.flexvol.dev/offline=always", "write \"restart\"");
        let shrunk = apply(scenario, &sized("100Mi", "1Gi"), server_side).unwrap_err();
        assert!(shrunk.contains("volumes do not shrink"), "{shrunk}");
        never_grows(scenario);
        points.add(2);

        running.signal_controller(scenario, Signal::SIGKILL);
        let alone = apply(scenario, &sized("512Mi", "1Gi"), server_side).unwrap_err();
        assert!(alone.contains(STOCK), "{alone}");
        running.restart_with_webhooks(scenario, MONTHS, None);

        delete_set(scenario);
    });
}

/// Checks the error about a set without pods whose class allows no expansion.
fn never_grows(scenario: &Scenario) {
    let mut fixed = class("fixed", PLAIN, false, &json!({}));
    fixed["allowVolumeExpansion"] = false.into();
    let named = |size: &str| {
        let mut set = sized("320Mi", size);
        set["metadata"]["name"] = "fixed".into();
        set["spec"]["replicas"] = 0.into();
        set["spec"]["volumeClaimTemplates"][1]["spec"]["storageClassName"] = "fixed".into();
        set
    };
    scenario.apply(&[fixed, named("320Mi")]);
    let words = apply(scenario, &named("1Gi"), "").unwrap_err();
    assert!(
        words.contains("set its allowVolumeExpansion to true"),
        "{words}"
    );
}

/// Grows all claims of a set, which takes writes of the controller. In each round the controller ends after one
/// more write, until it needs no more.
fn killed(points: &Points) {
    with(MONTHS, |scenario, running| {
        scenario.apply(&[class("plain", PLAIN, false, &json!({}))]);
        let named = |size: &str| {
            let mut set = sized(size, size);
            for template in set["spec"]["volumeClaimTemplates"].as_array_mut().unwrap() {
                template["spec"]["storageClassName"] = "plain".into();
            }
            // Its pods cannot be scheduled, and its claims are bound nevertheless.
            set["spec"]["template"]["spec"]["nodeSelector"] = json!({"no": "node"});
            set
        };
        scenario.apply(&[named("320Mi")]);
        let claims = ["data-db-0", "data-db-1", "log-db-0", "log-db-1"];
        for claim in claims {
            scenario.eventually("the claim to be there", || {
                let get = ["get", "pvc", claim];
                scenario.lab().cluster().kubectl(&get).is_ok()
            });
            wait_bound(scenario, claim);
        }
        for writes in 1.. {
            let start = |end| running.restart_with_webhooks(scenario, MONTHS, end);
            start(Some(ExitPoint::After(writes)));
            // The controller first writes what the last round left, so it may end before the webhook is called.
            let mut round = Round::of(scenario, Program::Controller, || start(None));
            let size = format!("{}Mi", 320 + writes);
            round.eventually("the edit to be accepted", || {
                apply(scenario, &named(&size), "").is_ok()
            });
            for claim in claims {
                round.eventually(&format!("claim {claim} to have {size}"), || {
                    let status = scenario.claim("default", claim)["status"].clone();
                    status["capacity"]["storage"] == size
                        && !status["conditions"].to_string().contains("Resiz")
                });
            }
            if !round.killed {
                println!(
                    "flexvol-controller: killed after each of {} writes",
                    writes - 1
                );
                assert!(writes > 8, "four claims need more writes than {writes}");
                break;
            }
            points.add(1);
        }
        // The current one would end during the deletion.
        running.restart_controller(scenario, None);
        delete_set(scenario);
    });
}
