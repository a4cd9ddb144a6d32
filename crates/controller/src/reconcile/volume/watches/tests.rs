use super::*;
use crate::{drivers::ServedDrivers, placement::Nodes, support::metrics::Metrics};
use http::{Request, Response};
use kube::{Client, client::Body};
use serde_json::{from_value, json};
use std::{convert::Infallible, time::Duration};

/// The context of a controller whose API server never answers.
fn context() -> Arc<Context> {
    let nobody = |_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>();
    let client = Client::new(tower::service_fn(nobody), "default");
    let nodes = Arc::new(Nodes::new(Duration::from_secs(1)));
    let ours = ServedDrivers::from(["a/b"]);
    Context::new(client, ours, nodes, Metrics::default())
}

#[tokio::test]
async fn a_claim_that_has_gone_waits_for_no_node() {
    let nobody = |_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>();
    let client = Client::new(tower::service_fn(nobody), "default");
    let nodes = Arc::new(Nodes::new(Duration::from_secs(1)));
    let context = Context::new(
        client,
        ServedDrivers::from(["a/b"]),
        nodes,
        Metrics::default(),
    );
    let claim = |number: usize| -> PersistentVolumeClaim {
        let provisioner = crate::api::well_known::PROVISIONER[0];
        from_value(json!({
            "metadata": {
                "name": format!("c{number}"), "namespace": "ns", "uid": number.to_string(),
                "annotations": {provisioner: "a/b"},
            },
        }))
        .unwrap()
    };
    let claims = &context.claims;
    for number in 0..4 {
        claim_seen(&context, &claim(number), Presence::There);
        claims.mark_unplaceable(&format!("pvc-{number}"));
    }
    claim_seen(&context, &claim(0), Presence::Gone);
    // The volume was being reconciled when the event arrived.
    claims.mark_unplaceable("pvc-0");
    let mut bound = claim(1);
    bound.spec = from_value(json!({"volumeName": "pvc-1"})).unwrap();
    bound.status = from_value(json!({"phase": "Bound"})).unwrap();
    claim_seen(&context, &bound, Presence::There);
    assert_eq!(claims.keep(&HashSet::from(["2".to_owned()])), ["pvc-3"]);
    assert_eq!(
        claims.volumes_to_retry(),
        HashSet::new(),
        "nothing is offered"
    );
    claims.node_offers_more();
    assert_eq!(
        claims.volumes_to_retry(),
        HashSet::from(["pvc-2".to_owned()])
    );
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_removed_by_force_is_looked_at_where_its_claim_has_gone_too() {
    let context = context();
    let volume: PersistentVolume = from_value(json!({
        "metadata": {
            "name": "pvc-1", "uid": "v", "resourceVersion": "1",
            "annotations": {"pv.kubernetes.io/provisioned-by": "a/b"},
        },
        "spec": {
            "claimRef": {"namespace": "ns", "name": "data", "uid": "1"},
            "flexVolume": {"driver": "a/b"},
        },
        "status": {"phase": "Bound"},
    }))
    .unwrap();
    let node_volume = |state: &str| -> NodeVolume {
        from_value(json!({
            "apiVersion": "flexvol.dev/v1alpha1", "kind": "NodeVolume",
            "metadata": {"name": "pvc-1", "uid": "o", "generation": 1},
            "spec": {
                "driver": "a/b", "node": "n", "state": state, "size": 1, "published": true,
                "claim": {"namespace": "ns", "name": "data", "uid": "1"},
            },
        }))
        .unwrap()
    };
    for (state, looks) in [("Absent", false), ("Present", true)] {
        volume_seen(&context, &volume, Presence::There);
        let (index, ours) = (&context.index, &context.ours);
        index.node_volume(&node_volume(state), Presence::There, ours);
        volume_seen(&context, &volume, Presence::Gone);
        let next = tokio::time::timeout(Duration::from_secs(1), context.queue.next()).await;
        assert_eq!(next.is_ok(), looks, "{state}: it was to be deleted, or not");
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_was_handed_on_is_looked_at_whatever_finalizers_its_claim_has() {
    let context = context();
    let volume: PersistentVolume = from_value(json!({
        "metadata": {
            "name": "pvc-1", "uid": "v", "annotations": {"pv.kubernetes.io/provisioned-by": "a/b"},
        },
        "spec": {
            "claimRef": {"namespace": "ns", "name": "data", "uid": "2"},
            "flexVolume": {"driver": "a/b"},
        },
        "status": {"phase": "Bound"},
    }))
    .unwrap();
    context
        .index
        .volume(&volume, Presence::There, &context.ours);
    let claim = |version: &str, finalizers: &[&str]| -> PersistentVolumeClaim {
        from_value(json!({
            "metadata": {
                "name": "data", "namespace": "ns", "uid": "2", "resourceVersion": version,
                "finalizers": finalizers,
            },
            "spec": {"volumeName": "pvc-1", "resources": {"requests": {"storage": "2Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
        }))
        .unwrap()
    };
    claim_seen(&context, &claim("7", &[CLAIM_FINALIZER]), Presence::There);
    let both = [context.queue.next().await, context.queue.next().await];
    assert_eq!(
        HashSet::from(both),
        HashSet::from(["pvc-1", "pvc-2"].map(str::to_owned))
    );
    // The finalizer is removed by this process.
    let freed = claim("8", &[]);
    context.own_writes.add(&freed.metadata);
    claim_seen(&context, &freed, Presence::There);
    assert!(context.claims.has("pvc-1") && !context.claims.has("pvc-2"));
}
