use super::*;
use crate::{
    agent::capabilities::KnownCapabilities, drivers::ServedDrivers, runtime::work_queue::Queue,
    support::metrics::Metrics,
};
use flexvol_sdk::Bytes;
use hyper::{Method, Request, Response};
use kube::{Client, client::Body};
use std::sync::atomic::AtomicU32;
use tower::BoxError;

#[test]
fn a_node_that_cannot_tell_what_is_on_it_tries_ever_more_rarely_and_not_with_all_others() {
    let after = |failures: u32, chance: f64| pause(failures, HEARTBEAT, chance).as_millis();
    let whole = [1, 2, 3, 6, 7, 1000].map(|failures| after(failures, 0.0));
    assert_eq!(whole, [1000, 2000, 4000, 32_000, 60_000, 60_000]);
    assert_eq!(after(7, 1.0), 30_000);
    assert_eq!(pause(9, Duration::ZERO, 0.0), SOON);
    let drawn = Vec::from_iter((0..50).map(|_| chance()));
    assert!(drawn.iter().all(|chance| (0.0..=1.0).contains(chance)));
    assert!(drawn.iter().any(|chance| *chance != drawn[0]), "{drawn:?}");
}

/// The heartbeat of a node without drivers.
fn heartbeat(client: Client, ours: ServedDrivers) -> Heartbeat {
    let metrics = Metrics::default();
    let context = NodeContext {
        client,
        node: "n".to_owned(),
        ours,
        drivers: Drivers {
            plugins: "/plugins".into(),
            mounts: None,
            deadline: Duration::from_secs(600),
        },
        capabilities: KnownCapabilities::default(),
        queue: Arc::new(Queue::new(Backoff::FAILURES, metrics.of_queue("volume"))),
        metrics,
    };
    Heartbeat {
        context: Arc::new(context),
        period: HEARTBEAT,
        changed: Notify::new(),
        told: AtomicBool::new(false),
    }
}

/// An outdated CRD lacks the newer fields.
#[tokio::test]
async fn what_the_api_server_prunes_is_not_told_again() {
    let writes = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&writes);
    let former = move |request: Request<Body>| {
        let counted = Arc::clone(&counted);
        async move {
            let (head, body) = request.into_parts();
            let mut node = json!({"metadata": {"name": "n"}});
            if head.method == Method::PUT {
                counted.fetch_add(1, Ordering::Relaxed);
                node = serde_json::from_slice(&body.collect_bytes().await?)?;
                node["status"]
                    .as_object_mut()
                    .unwrap()
                    .remove("deadlineSeconds");
            }
            node["apiVersion"] = StorageNode::api_version().into();
            node["kind"] = "StorageNode".into();
            Ok::<_, BoxError>(Response::new(Body::from(node.to_string().into_bytes())))
        }
    };
    let client = Client::new(tower::service_fn(former), "default");
    let heartbeat = heartbeat(client, ServedDrivers::from(["a/b"]));
    let status = || StorageNodeStatus {
        deadline_seconds: Some(600),
        ..StorageNodeStatus::default()
    };
    let mut told = None;
    for _ in 0..3 {
        heartbeat.tell_once(status(), &mut told).await.unwrap();
        assert_eq!(writes.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_measured_of_pools_is_told_for_three_heartbeats_without_a_measurement() {
    let fails = async |_: Request<Body>| Err::<Response<Body>, BoxError>("nobody answers".into());
    // Running a driver takes time that does not pass here.
    let client = Client::new(tower::service_fn(fails), "default");
    let heartbeat = heartbeat(client, ServedDrivers::default());
    let of = |name: &str| ("a/b".to_owned(), name.to_owned());
    let space = PoolSpace {
        size: Some(Bytes(1)),
        ..PoolSpace::default()
    };
    let metrics = &heartbeat.context.metrics;
    metrics.lack(&BTreeMap::from([(of("class"), Bytes(1))]));
    metrics.pools(&BTreeMap::from([(of("pool"), space)]));
    let told = || {
        let text = metrics.text();
        let names = ["flexvol_missing_bytes{", "flexvol_pool_size_bytes{"];
        names.map(|name| text.contains(name))
    };
    let (found, _seen) = watch::channel(None);
    let mut measure = std::pin::pin!(heartbeat.measure(&found));
    let before = timeout(HEARTBEAT * (STALE - 1), measure.as_mut()).await;
    assert!(before.is_err(), "it goes on for ever");
    assert_eq!(told(), [true; 2]);
    let after = timeout(HEARTBEAT * 3, measure).await;
    assert!(after.is_err(), "it goes on for ever");
    assert_eq!(told(), [false; 2]);
}
