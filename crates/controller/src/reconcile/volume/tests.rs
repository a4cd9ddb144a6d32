use super::*;
use crate::{
    api::{v1alpha1::NodeVolume, well_known::PROVISIONED_BY},
    client::{Budget, Fence, connect},
    drivers::ServedDrivers,
    placement::Nodes,
    runtime::{reflector::Presence, work_queue::Outcome},
    support::metrics::Metrics,
};
use flexvol_apiserver::{Key, Server};
use serde_json::{from_value, json};

/// The driver has a minimum size.
#[test]
fn a_volume_that_is_larger_than_rounding_explains_is_told_and_not_looked_at_again() {
    let server = Server::start().unwrap();
    let make = |kind: &str, namespace: &str, name: &str, mut object: serde_json::Value| {
        object["metadata"]["name"] = name.into();
        let key = Key::new(kind, namespace, name);
        let made = server.store().create(&key, object.clone()).unwrap();
        if object["status"].is_object() {
            let status = &object["status"];
            server.store().merge_status(&key, status).unwrap();
        }
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    };
    let (asked, least) = ("10Mi", 4_u64 << 30);
    let uid = make(
        "PersistentVolumeClaim",
        "ns",
        "data",
        json!({
            "metadata": {"namespace": "ns"},
            "spec": {"resources": {"requests": {"storage": asked}}},
        }),
    );
    let name = format!("pvc-{uid}");
    let bound = json!({"spec": {"volumeName": name}});
    let claim = Key::new("PersistentVolumeClaim", "ns", "data");
    server.store().merge(&claim, &bound).unwrap();
    let status = json!({"phase": "Bound", "capacity": {"storage": asked}});
    server.store().merge_status(&claim, &status).unwrap();
    let place = json!({"namespace": "ns", "name": "data", "uid": uid});
    make(
        "PersistentVolume",
        "",
        &name,
        json!({
            "metadata": {"annotations": {PROVISIONED_BY: "a/b"}},
            "spec": {
                "capacity": {"storage": asked}, "claimRef": place,
                "flexVolume": {"driver": "a/b"},
            },
        }),
    );
    make(
        "NodeVolume",
        "",
        &name,
        json!({
            "apiVersion": NodeVolume::api_version(), "kind": "NodeVolume",
            "metadata": {},
            "spec": {
                "driver": "a/b", "node": "n", "state": "Present", "size": 10 << 20,
                "published": true, "claim": place,
            },
            "status": {"state": "Present", "size": least, "observedGeneration": 1},
        }),
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), server.kubeconfig()).unwrap();
    let looked_at = async {
        let budget = Budget::of(Some(100.0));
        let metrics = Metrics::default();
        let client = connect(Some(file.path()), budget, Fence::default(), metrics).await;
        let nodes = Arc::new(Nodes::new(Duration::MAX));
        let ours = ServedDrivers::from(["a/b"]);
        let context = Context::new(client.unwrap(), ours, nodes, Metrics::default());
        let told = |kind: &str| server.store().all(kind).pop().unwrap();
        let volume = from_value(told("PersistentVolume")).unwrap();
        let (there, ours) = (Presence::There, &context.ours);
        context.index.volume(&volume, there, ours);
        let node_volume = from_value(told("NodeVolume")).unwrap();
        context.index.node_volume(&node_volume, there, ours);
        let outcome = reconcile(&context, &name).await.unwrap();
        while server.store().count("Event") == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        outcome
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let outcome = runtime.unwrap().block_on(looked_at);
    assert_eq!(outcome, Outcome::Done);
    let event = server.store().all("Event").pop().unwrap();
    let words = event["message"].as_str().unwrap();
    assert!(words.contains("the storage has 4Gi"), "{words}");
}
