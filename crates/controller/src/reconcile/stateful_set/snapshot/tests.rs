use super::*;
use crate::drivers::ServedDrivers;
use serde_json::{Value, from_value, json};

const THEN: &str = "2026-11-22T12:00:00Z";

fn set(more: Value) -> StatefulSet {
    let mut set = json!({
        "metadata": {"name": "db", "namespace": "ns", "uid": "s", "generation": 3},
        "spec": {"replicas": 3, "serviceName": "db", "selector": {}, "template": {}},
        "status": {
            "replicas": 3, "observedGeneration": 3, "updatedReplicas": 3,
            "currentRevision": "a", "updateRevision": "a",
        },
    });
    for (part, fields) in more.as_object().unwrap() {
        for (key, value) in fields.as_object().unwrap() {
            set[part][key] = value.clone();
        }
    }
    from_value(set).unwrap()
}

#[test]
fn a_set_rolls_until_kubernetes_has_replaced_what_it_is_to_replace() {
    let newer = |updated: i32| json!({"updateRevision": "b", "updatedReplicas": updated});
    let rolls = |more: Value| super::rolls(&set(more), &[]);
    assert!(!rolls(json!({})));
    assert!(rolls(json!({"metadata": {"generation": 4}})));
    assert!(rolls(json!({"status": newer(2)})));
    assert!(!rolls(json!({"status": newer(3)})));
    let by_hand = json!({"updateStrategy": {"type": "OnDelete"}});
    assert!(!rolls(json!({"status": newer(0), "spec": by_hand})));
    let part = json!({"updateStrategy": {"rollingUpdate": {"partition": 2}}});
    assert!(!rolls(json!({"status": newer(1), "spec": part})));
    assert!(rolls(json!({"status": newer(0), "spec": part})));
}

#[test]
fn a_pod_comes_back_only_with_the_revision_that_kubernetes_would_make_it_with() {
    let looked_at = |spec: Value, ordinal: i64, revision: Option<&str>| {
        let status = json!({"updateRevision": "b", "updatedReplicas": 1});
        let set = set(json!({"status": status, "spec": spec}));
        let name = format!("db-{ordinal}");
        let labels = json!({"controller-revision-hash": revision});
        let labels = revision.map(|_| labels);
        let pod = pod(json!({"metadata": {"name": name, "labels": labels}}));
        let pod = pod_of(&set, &pod, THEN.parse().unwrap()).unwrap();
        (pod.comes_back, rolls(&set, &[pod]))
    };
    let by_hand = || json!({"updateStrategy": {"type": "OnDelete"}});
    assert_eq!(looked_at(by_hand(), 1, Some("a")), (false, false));
    assert_eq!(looked_at(by_hand(), 1, Some("b")), (true, false));
    assert_eq!(looked_at(by_hand(), 1, None), (false, false));
    let part = || json!({"updateStrategy": {"rollingUpdate": {"partition": 2}}});
    assert_eq!(looked_at(part(), 1, Some("a")), (true, false));
    assert_eq!(looked_at(part(), 2, Some("b")), (true, false));
    let rolled_further_before = looked_at(part(), 1, Some("b"));
    assert_eq!(rolled_further_before, (false, false));
    let is_replaced_next = looked_at(part(), 2, Some("a"));
    assert_eq!(is_replaced_next, (false, true));
    let mut later = part();
    later["ordinals"] = json!({"start": 5});
    assert_eq!(looked_at(later.clone(), 6, Some("a")), (true, false));
    assert_eq!(looked_at(later, 7, Some("b")), (true, false));
}

fn pod(more: Value) -> pod::Pod {
    let mut pod = json!({
        "metadata": {
            "name": "db-1", "uid": "p", "creationTimestamp": THEN,
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "s",
                "controller": true,
            }],
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    for (part, fields) in more.as_object().unwrap() {
        for (key, value) in fields.as_object().unwrap() {
            pod[part][key] = value.clone();
        }
    }
    from_value(pod).unwrap()
}

#[test]
fn only_what_the_set_has_made_is_its_pod() {
    let now = THEN.parse().unwrap();
    let of = |more: Value| pod_of(&set(json!({})), &pod(more), now);
    let state = |more: Value| of(more).unwrap().state;
    let found = of(json!({})).unwrap();
    assert_eq!((found.ordinal, found.made.to_string().as_str()), (1, THEN));
    assert_eq!(found.state, State::Ready);
    let unready = json!([{"type": "Ready", "status": "False"}]);
    assert_eq!(
        state(json!({"status": {"conditions": unready}})),
        State::Unready
    );
    let starts = json!({"status": {"phase": "Pending", "conditions": null}});
    assert_eq!(state(starts), State::Starting);
    let going = json!({"metadata": {"deletionTimestamp": THEN}});
    assert_eq!(state(going), State::Going);
    assert_eq!(of(json!({"metadata": {"name": "db-x-1"}})), None);
    assert_eq!(of(json!({"metadata": {"ownerReferences": null}})), None);
    let mut truncated = pod(json!({"metadata": {"ownerReferences": null}}));
    truncated.is_truncated = true;
    let read = pod_of(&set(json!({})), &truncated, now).unwrap();
    assert_eq!(read.state, State::Unknown, "its owner was not read");
}

#[test]
fn a_node_volume_says_when_it_was_answered_last() {
    let of = |times: &[&str]| {
        let writers = times
            .iter()
            .map(|time| json!({"time": time, "subresource": "status"}));
        let node_volume: NodeVolume = from_value(json!({
            "apiVersion": "flexvol.dev/v1alpha1", "kind": "NodeVolume",
            "metadata": {"name": "pvc-1", "managedFields": writers.collect::<Vec<_>>()},
            "spec": {
                "driver": "a/b", "node": "n", "state": "Present", "size": 1,
                "claim": {"namespace": "ns", "name": "data-db-1", "uid": "1"},
            },
        }))
        .unwrap();
        written(&node_volume).map(|time| time.to_string())
    };
    let later = "2026-11-22T12:05:00Z";
    assert_eq!(of(&[THEN, later]), Some(later.to_owned()));
    assert_eq!(of(&[later, THEN]), Some(later.to_owned()));
    assert_eq!(of(&[]), None);
}

#[test]
fn a_claim_says_when_its_status_was_last_written_by_others_than_kubelet() {
    let of = |writers: Value| {
        let claim: PersistentVolumeClaim = from_value(json!({
            "metadata": {"name": "data-db-1", "managedFields": writers},
        }))
        .unwrap();
        status_written(&claim).map(|time| time.to_string())
    };
    let later = "2026-11-22T12:05:00Z";
    let writer = |manager: &str, part: &str, time: &str| json!({"manager": manager, "subresource": part, "time": time});
    let ours = writer("flexvol-controller", "status", THEN);
    let others = [
        writer("kubelet", "status", later),
        json!({"manager": "kubectl", "time": later}),
    ];
    let then = Some(THEN.to_owned());
    assert_eq!(of(json!([ours, others[0], others[1]])), then);
    assert_eq!(of(json!(others)), None);
    let controllers = writer("kube-controller-manager", "status", later);
    assert_eq!(of(json!([ours, controllers])), Some(later.to_owned()));
}

#[test]
fn a_pod_is_ready_once_it_was_for_as_long_as_the_set_says() {
    let state = |least: Option<i32>, since: Option<&str>, seconds: i64| {
        let set = set(json!({"spec": {"minReadySeconds": least}}));
        let ready = json!([{"type": "Ready", "status": "True", "lastTransitionTime": since}]);
        let pod = pod(json!({"status": {"conditions": ready}}));
        let now: Timestamp = THEN.parse().unwrap();
        let now = now + SignedDuration::from_secs(seconds);
        pod_of(&set, &pod, now).unwrap().state
    };
    assert_eq!(state(Some(60), Some(THEN), 59), State::Unready);
    assert_eq!(state(Some(60), Some(THEN), 60), State::Ready);
    assert_eq!(state(Some(60), None, 60), State::Unready);
    assert_eq!(state(Some(0), Some(THEN), -1), State::Ready);
    assert_eq!(state(None, None, 0), State::Ready);
}

#[test]
fn names_that_would_be_paths_are_no_claims() {
    let volume = |claim: &str| json!({"name": "v", "persistentVolumeClaim": {"claimName": claim}});
    let volumes =
        json!([volume("data-db-1"), volume("../secrets"), {"name": "tmp", "emptyDir": {}}]);
    let pod = pod(json!({"spec": {"containers": [], "volumes": volumes}}));
    assert_eq!(claims_of(&pod), ["data-db-1"]);
}

#[test]
fn only_the_file_system_is_pending_where_the_node_has_the_storage() {
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": THEN, "message": "full"});
    let since = |conditions: &[&str], reached: Option<Value>| {
        let conditions: Vec<_> = conditions.iter().map(|kind| condition(kind)).collect();
        let claim: PersistentVolumeClaim = from_value(json!({
            "spec": {"resources": {"requests": {"storage": "2Gi"}}},
            "status": {"conditions": conditions},
        }))
        .unwrap();
        let node_volume = reached.map(|status| -> NodeVolume {
            from_value(json!({
                "apiVersion": "flexvol.dev/v1alpha1", "kind": "NodeVolume",
                "metadata": {"name": "pvc-1", "generation": 1},
                "spec": {
                    "driver": "a/b", "node": "n", "state": "Present", "size": 2_u64 << 30,
                    "claim": {"namespace": "ns", "name": "data-db-1", "uid": "1"},
                },
                "status": status,
            }))
            .unwrap()
        });
        let reduced = node_volume
            .as_ref()
            .map(|node_volume| node_volume_of(node_volume, &ServedDrivers::from(["a/b"])));
        waits_since(&claim)
            .filter(|_| has_storage(&claim, reduced.as_ref()))
            .map(|time| time.to_string())
    };
    let has = |size: u64| Some(json!({"state": "Present", "size": size, "observedGeneration": 1}));
    let then = Some(THEN.to_owned());
    assert_eq!(since(&[FILE_SYSTEM_RESIZE_PENDING], has(2 << 30)), then);
    assert_eq!(
        since(
            &[FILE_SYSTEM_RESIZE_PENDING, "NodeResizeError"],
            has(2 << 30)
        ),
        then
    );
    assert_eq!(
        since(&[FILE_SYSTEM_RESIZE_PENDING], has(1 << 30)),
        None,
        "storage first"
    );
    assert_eq!(
        since(
            &[FILE_SYSTEM_RESIZE_PENDING, "ControllerResizeError"],
            has(2 << 30)
        ),
        None
    );
    assert_eq!(since(&[], has(2 << 30)), None);
    let problem = json!({"class": "exhausted", "message": "full"});
    let mut full = has(2 << 30).unwrap();
    full["error"] = problem;
    assert_eq!(since(&[FILE_SYSTEM_RESIZE_PENDING], Some(full)), None);
    let unsaid = json!({"state": "Present", "observedGeneration": 1});
    assert_eq!(
        since(&[FILE_SYSTEM_RESIZE_PENDING], Some(unsaid)),
        then,
        "it grows on the node"
    );
    assert_eq!(
        since(&[FILE_SYSTEM_RESIZE_PENDING], None),
        then,
        "somebody else's"
    );
}

/// Init containers run while a pod is Pending, after kubelet has mounted its volumes.
#[test]
fn a_pod_whose_init_containers_have_run_is_not_starting() {
    let condition = |kind: &str, status: &str| json!({"type": kind, "status": status});
    let crashing = json!({"status": {
        "phase": "Pending",
        "conditions": [
            condition("PodReadyToStartContainers", "True"), condition("Initialized", "False"),
            condition("Ready", "False"),
        ],
        "initContainerStatuses": [{"name": "migrate", "restartCount": 99}],
    }});
    let found = pod_of(&set(json!({})), &pod(crashing), THEN.parse().unwrap());
    assert_ne!(found.unwrap().state, State::Starting);
}
