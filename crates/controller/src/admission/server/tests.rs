use super::*;
use crate::{
    api::well_known::NODE_ANNOTATION,
    client::{Budget, Fence, connect},
};
use flexvol_apiserver::{Key, Server};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use serde_json::{Value, json};
use tower::BoxError;

#[test]
fn who_waits_for_the_lease_does_without_the_certificate_that_only_a_leader_makes() {
    let serving = ServingCertificate::default();
    assert!(!serving.is_ready(false), "nobody has looked");
    serving.set_awaited();
    assert!(serving.is_ready(false) && !serving.is_ready(true));
    let lifetime = Duration::from_secs(3600);
    let made = Certificate::make(
        "flexvol-webhook.system.svc",
        lifetime,
        Timestamp::now(),
        None,
    )
    .unwrap();
    serving.set(&made).unwrap();
    assert!(serving.is_ready(false) && serving.is_ready(true));
}

/// A judge without an API server.
fn alone() -> Judge {
    let nobody = tower::service_fn(|_: Request<Body>| async {
        Err::<Response<Body>, _>(BoxError::from("nobody answers"))
    });
    Judge {
        client: Client::new(nobody, "default"),
        ours: ServedDrivers::from(["example.com/disk"]),
        silence: Duration::from_secs(200),
        metrics: Metrics::default(),
        shares: Shares::default(),
    }
}

fn soon() -> Instant {
    Instant::now() + TIMEOUT
}

#[tokio::test(start_paused = true)]
async fn a_question_whose_turn_does_not_come_is_not_kept_waiting() {
    let asker = Asker {
        host: [10, 0, 0, 1].into(),
        namespace: "shop".to_owned(),
    };
    let turns = Turns::new(0);
    let (judge, begun) = (alone(), Instant::now());
    let answer = judge.answer_in_turn(&turns, &asker, "/claims", b"", soon());
    let answer = answer.await;
    assert!(answer.body().contains(BUSY), "{answer:?}");
    assert_eq!(begun.elapsed().as_secs(), TIMEOUT.as_secs());
}

#[tokio::test]
async fn what_cannot_be_judged_passes() {
    let claim = |size: &str| {
        let resources = json!({"requests": {"storage": size}});
        json!({"spec": {"volumeName": "pvc-1", "resources": resources}})
    };
    let set = |size: &str, grown: &str| {
        let mut template = claim(size);
        template["metadata"] = json!({"name": "data"});
        template["spec"]["storageClassName"] = "disk".into();
        json!({
            "metadata": {"name": "db", "annotations": {"grow.flexvol.dev/data": grown}},
            "spec": {
                "serviceName": "db", "selector": {}, "template": {},
                "volumeClaimTemplates": [template],
            },
        })
    };
    let judge = alone();
    for (path, old, new) in [
        ("/claims", claim("1Gi"), claim("2Gi")),
        ("/sets", set("1Gi", "2Gi"), set("1Gi", "3Gi")),
        ("/templates", set("1Gi", "2Gi"), set("4Gi", "2Gi")),
    ] {
        let request = json!({"uid": "u-1", "object": new, "oldObject": old});
        let question = json!({"request": request}).to_string();
        let answer = judge.answer(path, question.as_bytes(), soon()).await;
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        let answer: Value = serde_json::from_str(answer.body()).unwrap();
        assert_eq!(answer["response"]["allowed"], true, "{path}");
        assert!(answer["response"].get("patch").is_none(), "{path}");
    }
    let counted = judge.metrics.text();
    for what in ["claim", "set", "template"] {
        let line =
            format!("flexvol_operations_total{{operation=\"judge-{what}\",result=\"failed\"}} 1");
        assert!(counted.contains(&line), "{counted}");
    }
}

/// The response to a claim that requests 8Gi more, on a node with 4Gi left by a heartbeat of this age.
fn judged(seconds: i64) -> Value {
    let server = Server::start().unwrap();
    let metadata = |name: &str| json!({"name": name, "annotations": {NODE_ANNOTATION: "n"}});
    let driver = "example.com/disk";
    for (kind, object) in [
        (
            "StorageClass",
            json!({"metadata": metadata("disk"), "provisioner": driver}),
        ),
        (
            "PersistentVolume",
            json!({"metadata": metadata("pvc-1"), "spec": {"flexVolume": {"driver": driver}}}),
        ),
        ("StorageNode", json!({"metadata": metadata("n")})),
    ] {
        let name = object["metadata"]["name"].as_str().unwrap();
        let key = Key::new(kind, "", name);
        server.store().create(&key, object).unwrap();
    }
    let seen = Timestamp::now() - SignedDuration::from_secs(seconds);
    let status = json!({
        "drivers": {driver: {}}, "capacities": {"disk": 4_u64 << 30}, "lastHeartbeatTime": seen.to_string(),
    });
    let node = Key::new("StorageNode", "", "n");
    server.store().merge_status(&node, &status).unwrap();
    let claim = |size: &str| {
        json!({"spec": {
            "volumeName": "pvc-1", "storageClassName": "disk",
            "resources": {"requests": {"storage": size}},
        }})
    };
    let request = json!({"uid": "u-1", "object": claim("9Gi"), "oldObject": claim("1Gi")});
    let question = json!({"request": request}).to_string();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), server.kubeconfig()).unwrap();
    let answer = async {
        let budget = Budget::of(Some(100.0));
        let metrics = Metrics::default();
        let client = connect(Some(file.path()), budget, Fence::default(), metrics);
        let client = client.await.unwrap();
        let judge = Judge { client, ..alone() };
        judge.answer("/claims", question.as_bytes(), soon()).await
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let answer = runtime.unwrap().block_on(answer);
    let answer: Value = serde_json::from_str(answer.body()).unwrap();
    answer["response"].clone()
}

#[test]
fn room_that_an_agent_told_of_before_it_fell_silent_refuses_nothing() {
    let answer = judged(100);
    assert_eq!(answer["allowed"], false, "{answer}");
    let answer = judged(300);
    assert_eq!(answer["allowed"], true, "{answer}");
    let warned = answer["warnings"].to_string();
    assert!(warned.contains("was last heard of at 20"), "{warned}");
}

#[tokio::test]
async fn what_is_no_question_gets_no_answer() {
    let judge = alone();
    for path in ["/claims", "/sets", "/templates"] {
        let answer = judge.answer(path, b"nonsense", soon()).await;
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{path}");
    }
    let answer = judge.answer("/", b"", soon()).await;
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
}
