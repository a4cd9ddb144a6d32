use super::*;
use crate::{api::drivers::Ours, support::metrics::Metrics};
use http::{Request, Response};
use kube::{Client, client::Body};
use serde_json::{from_value, json};
use std::convert::Infallible;

#[tokio::test]
async fn a_claim_that_has_gone_waits_for_no_node() {
    let nobody = |_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>();
    let client = Client::new(tower::service_fn(nobody), "default");
    let second = Duration::from_secs(1);
    let controller = Controller::new(client, Ours::from(["a/b"]), second, Metrics::default());
    let claim = |number: usize| -> PersistentVolumeClaim {
        let provisioner = crate::api::labels::PROVISIONER[0];
        from_value(json!({
            "metadata": {
                "name": format!("c{number}"), "namespace": "ns", "uid": number.to_string(),
                "annotations": {provisioner: "a/b"},
            },
        }))
        .unwrap()
    };
    let nodeless = || controller.nodeless.lock().unwrap().len();
    for number in 0..4 {
        controller.claim_seen(&claim(number), Presence::There);
        controller.wait_for_node(&format!("pvc-{number}"));
    }
    assert_eq!(nodeless(), 4);
    controller.claim_seen(&claim(0), Presence::Gone);
    assert_eq!(nodeless(), 3);
    // It was looked at while that came.
    controller.wait_for_node("pvc-0");
    assert_eq!(nodeless(), 3);
    let mut bound = claim(1);
    bound.spec = from_value(json!({"volumeName": "pvc-1"})).unwrap();
    bound.status = from_value(json!({"phase": "Bound"})).unwrap();
    controller.claim_seen(&bound, Presence::There);
    assert_eq!(nodeless(), 2);
    assert_eq!(
        controller.keep_claims(&HashSet::from(["2".to_owned()])),
        ["pvc-3"]
    );
    assert_eq!(nodeless(), 1);
}
