//! Answers of `flexvol-controller`'s webhooks about growth, and the certificates behind them.

use crate::{
    claims::{claim, class, delete_claim, wait_bound, wait_nothing_left},
    controllers::{self, Running},
    lab::{self, DISK, Lab},
    scenario::Scenario,
};
use flexvol_testing::{Need, Points, tests};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
};

tests! {
    "webhooks: a claim that asks for more than can be had is refused with what can, and grows unasked when nobody answers", &[Need::Root]
        => claims;
    "webhooks: a certificate is renewed before it ends, taken over by whoever leads next, and made again when it is lost", &[Need::Root]
        => certificates;
}

/// The default validity of certificates, in seconds.
pub const MONTHS: u64 = 90 * 86400;

/// Runs a scenario with a controller whose webhooks have certificates of this validity.
pub fn with(certificate_seconds: u64, run: impl FnOnce(&Scenario, &Running)) {
    controllers::with(|scenario, running| {
        let lab = scenario.lab();
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/cluster/webhooks.yaml");
        lab.apply_text(&fs::read_to_string(file).unwrap());
        let service = ["service", "flexvol-webhook", "--namespace=flexvol"];
        let address = ["get", "--output=jsonpath={.spec.clusterIP}"];
        let address = lab.kubectl(&[&address[..], &service].concat());
        // There is no kube-proxy on the node, so the node itself gets the service's address.
        let address = format!("{}/32", address.trim());
        lab.run("ip", &["address", "add", &address, "dev", "lo"]);
        let result = catch_unwind(AssertUnwindSafe(|| {
            // An earlier controller may have made it after the end of the last scenario.
            lose_secret(lab);
            running.restart_with_webhooks(scenario, certificate_seconds, None);
            run(scenario, running);
        }));
        for kind in CONFIGURATIONS {
            lab.kubectl(&["delete", kind, "flexvol"]);
        }
        lab.kubectl(&[&["delete"], &service[..]].concat());
        lab.run("ip", &["address", "delete", &address, "dev", "lo"]);
        lab.kubectl(&["delete", "statefulsets", "--all", "--timeout=60s"]);
        if let Err(panic) = result {
            resume_unwind(panic);
        }
    });
}

/// The first release with match conditions, which the webhook configurations use.
pub const SINCE: &str = "1.30.0";

/// Whether the release has them.
pub fn are_there() -> bool {
    lab::version() >= SINCE.parse().unwrap()
}

const CONFIGURATIONS: [&str; 2] = [
    "mutatingwebhookconfiguration",
    "validatingwebhookconfiguration",
];

/// Runs kubectl, which must fail, and returns its error.
#[track_caller]
fn refusal(scenario: &Scenario, arguments: &[&str]) -> String {
    let result = scenario.lab().cluster().kubectl(arguments);
    let error = result.expect_err("it is refused");
    format!("{error:#}")
}

#[track_caller]
pub fn refused(scenario: &Scenario, arguments: &[&str], why: &str) {
    let words = refusal(scenario, arguments);
    assert!(words.contains(why), "{words}");
}

fn ask(claim: &str, size: &str) -> Vec<String> {
    let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}}).to_string();
    ["patch", "pvc", claim, "--patch", &patch]
        .map(str::to_owned)
        .to_vec()
}

/// Waits until a dry run of a growth beyond all capacity is refused.
fn wait_judged(scenario: &Scenario, claim: &str) {
    let ask = [ask(claim, "900Gi"), vec!["--dry-run=server".to_owned()]].concat();
    let ask: Vec<_> = ask.iter().map(String::as_str).collect();
    scenario.eventually("growth to be judged", || {
        match scenario.lab().cluster().kubectl(&ask) {
            Ok(_) => false,
            Err(error) => {
                let words = format!("{error:#}");
                assert!(words.contains("claims.flexvol.dev"), "{words}");
                assert!(words.contains("ask for at most"), "{words}");
                true
            }
        }
    });
}

fn claims(points: &Points) {
    with(MONTHS, |scenario, running| {
        let pool = json!({"pool": "default"});
        let mut limited = class("limited", DISK, false, &pool);
        limited["metadata"]["annotations"] = json!({"flexvol.dev/largest": "400Mi"});
        scenario.apply(&[class("at-once", DISK, false, &pool), limited]);
        scenario.apply(&[claim("data", "at-once", 320), claim("few", "limited", 320)]);
        let [data, few] = ["data", "few"].map(|name| wait_bound(scenario, name));
        // No pod uses them, so only the storage grows.
        let wait_grown = |volume: &str, mebibytes: u64| {
            scenario.eventually(&format!("{mebibytes} MiB of storage"), || {
                let order = scenario.get("default", "nodevolume", volume);
                order["status"]["size"] == mebibytes << 20
            });
            points.add(1);
        };
        wait_judged(scenario, "data");
        let ask = |claim: &str, size: &str, why: &str| {
            let ask = ask(claim, size);
            let ask: Vec<_> = ask.iter().map(String::as_str).collect();
            refused(scenario, &ask, why);
            points.add(1);
        };
        ask(
            "few",
            "401Mi",
            "allows at most 400Mi, and 401Mi is asked for",
        );
        // Kubernetes' own message: it refuses a smaller size before it calls the webhook.
        ask("data", "319Mi", "less than status.capacity");
        scenario.ask_for("few", 400);
        scenario.ask_for("data", 352);
        wait_grown(&few, 400);
        wait_grown(&data, 352);
        running.signal_controller(scenario, Signal::SIGKILL);
        scenario.ask_for("few", 416);
        scenario.ask_for("data", 384);
        running.restart_with_webhooks(scenario, MONTHS, None);
        wait_grown(&data, 384);
        // Growth that the webhook did not refuse is reported, and done as soon as the class allows it.
        let beyond = "allows at most 400Mi, and 416Mi is asked for";
        scenario.wait_event("default", "few", beyond);
        let order = scenario.get("default", "nodevolume", &few);
        assert_eq!(order["spec"]["size"], 400u64 << 20);
        let more = "flexvol.dev/largest=416Mi";
        let class = ["annotate", "--overwrite", "storageclass", "limited", more];
        scenario.lab().kubectl(&class);
        wait_grown(&few, 416);
        for name in ["data", "few"] {
            delete_claim(scenario, name);
        }
        wait_nothing_left(scenario);
    });
}

/// The secret with the certificate.
fn secret(scenario: &Scenario) -> Value {
    scenario.get("flexvol", "secret", "flexvol-webhook")
}

/// Deletes the secret, and applies the empty one of the manifests.
fn lose_secret(lab: &Lab) {
    let delete = ["delete", "secret", "flexvol-webhook", "--namespace=flexvol"];
    lab.kubectl(&delete);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/cluster/controller.yaml");
    let text = fs::read_to_string(file).unwrap();
    let mut objects = text.split("\n---\n");
    let empty = objects.find(|object| object.contains("\nkind: Secret\n"));
    lab.apply_text(empty.unwrap());
}

fn certificates(points: &Points) {
    with(30, |scenario, running| {
        let pool = json!({"pool": "default"});
        scenario.apply(&[class("at-once", DISK, false, &pool)]);
        scenario.apply(&[claim("data", "at-once", 320)]);
        wait_bound(scenario, "data");
        wait_judged(scenario, "data");
        let authority = |secret: &Value| secret["data"]["ca.crt"].clone();
        let first = authority(&secret(scenario));
        // Twice, so that the first certificate has expired and is not trusted any more.
        for _ in 0..2 {
            let before = authority(&secret(scenario));
            scenario.eventually("another certificate", || {
                authority(&secret(scenario)) != before
            });
            let now = secret(scenario);
            assert_eq!(now["data"]["former-ca.crt"], before);
            points.add(1);
        }
        assert_ne!(secret(scenario)["data"]["former-ca.crt"], first);
        // An open connection outlives its certificate. A new controller has no connections.
        running.signal_controller(scenario, Signal::SIGKILL);
        let short = authority(&secret(scenario));
        running.restart_with_webhooks(scenario, MONTHS, None);
        wait_judged(scenario, "data");
        points.add(1);

        // The new controller makes no certificate while the old one is valid.
        scenario.eventually("a certificate for months", || {
            authority(&secret(scenario)) != short
        });
        let lasting = secret(scenario);
        running.restart_with_webhooks(scenario, MONTHS, None);
        wait_judged(scenario, "data");
        assert_eq!(secret(scenario)["data"], lasting["data"]);
        points.add(1);

        // If the secret is lost while a controller runs, a new certificate is made, and the lost one is still trusted.
        let lab = scenario.lab();
        lose_secret(lab);
        scenario.eventually("another certificate", || {
            !authority(&secret(scenario)).is_null()
        });
        let made = secret(scenario);
        assert_eq!(made["data"]["former-ca.crt"], authority(&lasting));
        assert_ne!(authority(&made), authority(&lasting));
        wait_judged(scenario, "data");
        points.add(1);

        lose_secret(lab);
        let cut = json!({"webhooks": [{"name": "claims.flexvol.dev", "clientConfig": {"caBundle": null}}]});
        let patch = [
            "patch",
            CONFIGURATIONS[1],
            "flexvol",
            "--patch",
            &cut.to_string(),
        ];
        lab.kubectl(&patch);
        running.restart_with_webhooks(scenario, MONTHS, None);
        wait_judged(scenario, "data");
        let again = authority(&secret(scenario));
        assert_ne!(again, authority(&made));
        points.add(1);
        delete_claim(scenario, "data");
        wait_nothing_left(scenario);
    });
}
