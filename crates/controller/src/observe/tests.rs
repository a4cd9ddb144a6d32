use super::*;
use crate::{
    claims::{Step, decide},
    k8s::volume::tests::volume,
};
use serde_json::{Value, from_value, json};

#[test]
fn a_volume_that_people_take_from_its_former_claim_is_not_released() {
    let released =
        |claim| volume_of(&volume("pvc-1", &claim), &ServedDrivers::from(["a/b"])).released;
    let place = json!({"namespace": "ns", "name": "data", "uid": "2"});
    assert!(released(place));
    assert!(!released(json!({"namespace": "ns", "name": "data"})));
    let place = json!({"namespace": "other", "name": "next", "uid": ""});
    assert!(!released(place));
    assert!(!released(Value::Null));
}

/// A bound claim of 10Mi with this request, whose storage was measured to have this size.
fn grows(request: &str, measured: u64, status: &Value) -> Observed {
    let mut volume = volume(
        "pvc-1",
        &json!({"namespace": "ns", "name": "data", "uid": "1"}),
    );
    volume.status = from_value(json!({"phase": "Bound"})).unwrap();
    let size = json!({"storage": measured.to_string()});
    volume.spec.as_mut().unwrap().capacity = from_value(size).unwrap();
    let mut claim = json!({
        "metadata": {"name": "data", "namespace": "ns", "uid": "1"},
        "spec": {
            "volumeName": "pvc-1", "storageClassName": "disk",
            "resources": {"requests": {"storage": request}},
        },
        "status": status,
    });
    claim["status"]["phase"] = "Bound".into();
    claim["status"]["capacity"] = json!({"storage": "10Mi"});
    let class = json!({
        "metadata": {"name": "disk"}, "provisioner": "a/b", "allowVolumeExpansion": true,
    });
    let asked: u64 = request.parse::<Bytes>().map_or(0, |asked| asked.0);
    let node_volume = json!({
        "apiVersion": "flexvol.dev/v1alpha1", "kind": "NodeVolume",
        "metadata": {"name": "pvc-1", "generation": 1},
        "spec": {
            "driver": "a/b", "node": "n", "state": "Present", "published": true,
            "size": asked.min(measured),
            "claim": {"namespace": "ns", "name": "data", "uid": "1"},
        },
        "status": {
            "state": "Present", "size": measured, "observedGeneration": 1,
            "nodeExpansionRequired": true,
        },
    });
    let live = VolumeObjects {
        claim: Some(from_value(claim).unwrap()),
        volume: Some(volume),
        node_volume: Some(from_value(node_volume).unwrap()),
        class: Some(from_value(class).unwrap()),
        ..VolumeObjects::default()
    };
    live.observed("pvc-1", &ServedDrivers::from(["a/b"]))
}

#[test]
fn growth_that_is_rounded_up_rests_where_the_api_server_keeps_no_allocated_resources() {
    let pending = json!([{"type": "FileSystemResizePending", "status": "True"}]);
    let (asked, rounded) = ("11Mi", 12 << 20);
    let dropped = grows(asked, rounded, &json!({"conditions": pending}));
    assert_eq!(decide(&dropped), Step::NoOp);
    let kept = |allocated: &str| {
        let allocated = json!({"storage": allocated});
        let status = json!({"conditions": pending, "allocatedResources": allocated});
        decide(&grows(asked, rounded, &status))
    };
    assert_eq!(kept("12Mi"), Step::NoOp);
    let resized = Step::SetFileSystemResizePending(Bytes(rounded));
    assert_eq!(kept("11Mi"), resized, "kubelet would stop too early");
}

#[test]
fn growth_to_more_than_kubernetes_counts_is_told_and_nothing_is_ordered() {
    for asked in ["8Ei", "1e30"] {
        let mut observed = grows(asked, 10 << 20, &json!({}));
        observed.node_volume.as_mut().unwrap().size = Bytes(10 << 20);
        let step = decide(&observed);
        let Step::SetResizeFailure(why) = step else {
            panic!("{asked}: {step:?}");
        };
        assert!(
            why.contains(asked) && why.ends_with("ask for less"),
            "{why}"
        );
        observed.node_volume = None;
        let (state, size) = (claims::StorageState::Present, Bytes(10 << 20));
        let anew = Step::RecreateNodeVolume {
            state,
            size,
            most: size,
        };
        assert_eq!(decide(&observed), anew);
    }
}
