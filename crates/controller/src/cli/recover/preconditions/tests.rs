use super::*;
use serde_json::{Value, from_value, json};

/// The claim of a set's first pod, with a request of 30 MiB and storage of 10 MiB.
pub fn found() -> Found {
    let claim = json!({
        "metadata": {
            "name": "data-db-0", "namespace": "ns", "uid": "1",
            "labels": {"app": "db"},
            "annotations": {"pv.kubernetes.io/bind-completed": "yes", "of": "people"},
        },
        "spec": {
            "volumeName": "pvc-1", "storageClassName": "c", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "30Mi"}},
        },
        "status": {"phase": "Bound", "capacity": {"storage": "10Mi"}},
    });
    let volume = json!({
        "metadata": {
            "name": "pvc-1",
            "annotations": {"pv.kubernetes.io/provisioned-by": "a/b"},
        },
        "spec": {
            "capacity": {"storage": "30Mi"}, "flexVolume": {"driver": "a/b"},
            "claimRef": {"namespace": "ns", "name": "data-db-0", "uid": "1"},
            "persistentVolumeReclaimPolicy": "Delete",
        },
    });
    Found {
        namespace: "n-1".to_owned(),
        claim: from_value(claim).unwrap(),
        volume: from_value(volume).unwrap(),
        node_volume: Some(node_volume(Some(10 << 20))),
        users: Users::default(),
    }
}

fn node_volume(size: Option<u64>) -> NodeVolume {
    from_value(json!({
        "apiVersion": "flexvol.dev/v1alpha1", "kind": "NodeVolume",
        "metadata": {"generation": 2},
        "spec": {
            "driver": "a/b", "node": "n", "state": "Present", "size": 30 << 20,
            "claim": {"namespace": "ns", "name": "data-db-0", "uid": "1"},
        },
        "status": {"state": "Present", "size": size, "observedGeneration": 2},
    }))
    .unwrap()
}

fn set(annotations: &Value, replicas: i32) -> StatefulSet {
    from_value(json!({
        "metadata": {"name": "db", "namespace": "ns", "annotations": annotations},
        "spec": {
            "replicas": replicas, "serviceName": "db", "selector": {}, "template": {},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
        },
        "status": {"replicas": replicas},
    }))
    .unwrap()
}

fn owner(set: StatefulSet) -> Vec<Owner> {
    vec![Owner::of(&set, "data-db-0").unwrap()]
}

const MEBI: u64 = 1 << 20;

#[test]
fn a_claim_asks_for_what_its_storage_was_measured_to_have() {
    let to = |measured: Option<u64>, size: Option<u64>| {
        let found = Found {
            node_volume: Some(node_volume(measured.map(|size| size * MEBI))),
            ..found()
        };
        let plan = plan(&found, size.map(|size| Bytes(size * MEBI)))?;
        assert_eq!(
            plan.base,
            Bytes(10 * MEBI),
            "its file system may have no more"
        );
        Ok::<u64, String>(plan.to.0 / MEBI)
    };
    assert_eq!(to(Some(10), None), Ok(10));
    assert_eq!(to(Some(20), None), Ok(20), "it has grown in part");
    assert_eq!(to(None, None), Ok(10), "the driver tells no sizes");
    assert_eq!(to(Some(10), Some(15)), Ok(15));
    let refused = |measured, size| to(measured, size).unwrap_err();
    assert!(refused(Some(20), Some(15)).contains("nothing makes it smaller"));
    assert!(refused(Some(10), Some(30)).contains("edit it"));
    assert!(refused(Some(30), None).contains("nothing to take back"));
    assert_eq!(
        to(Some(1 << 20), None),
        Ok(10),
        "its node says more than was ordered"
    );
}

#[test]
fn nothing_is_taken_back_of_storage_that_may_be_growing() {
    let with = |status: &Value| {
        let mut found = found();
        let mut all = serde_json::to_value(found.node_volume.unwrap()).unwrap();
        all["status"] = status.clone();
        found.node_volume = Some(from_value(all).unwrap());
        plan(&found, None).map(|plan| plan.to.0 / MEBI)
    };
    let failed = |class: &str| json!({"class": class, "message": "no"});
    let answer = |generation: i64, error: Value| {
        let size = 10 * MEBI;
        with(
            &json!({"state": "Present", "size": size, "observedGeneration": generation, "error": error}),
        )
    };
    assert_eq!(answer(2, failed("exhausted")), Ok(10));
    let unanswered = answer(1, Value::Null).unwrap_err();
    assert!(
        unanswered.contains("30Mi, and has not answered yet"),
        "{unanswered}"
    );
    let uncertain = answer(2, failed("uncertain")).unwrap_err();
    assert!(uncertain.contains("uncertain: no; mend"), "{uncertain}");
    let unmeasured = with(&json!({"observedGeneration": 1})).unwrap_err();
    assert!(unmeasured.contains("not answered yet"), "{unmeasured}");
    let measured = json!({"state": "Present", "size": 30 * MEBI, "observedGeneration": 1});
    let had = with(&measured).unwrap_err();
    assert!(had.contains("nothing to take back"), "{had}");
    assert_eq!(
        with(&json!({"state": "Present"})),
        Ok(10),
        "no sizes are told"
    );
    let mut lost = found();
    lost.node_volume = None;
    let node = (NODE_ANNOTATION.to_owned(), "n".to_owned());
    let made_by_hand = plan(&lost, None).map(|plan| plan.to.0 / MEBI);
    assert_eq!(made_by_hand, Ok(10));
    lost.volume.annotations_mut().extend([node]);
    let lost = plan(&lost, None).unwrap_err();
    assert!(lost.contains("its NodeVolume is missing"), "{lost}");
}

#[test]
fn what_is_going_or_is_somebody_elses_is_left_alone() {
    let refused = |change: &dyn Fn(&mut Found)| {
        let mut found = found();
        change(&mut found);
        plan(&found, None).unwrap_err()
    };
    let going: PersistentVolumeClaim =
        from_value(json!({"metadata": {"deletionTimestamp": "2026-11-22T12:00:00Z"}})).unwrap();
    let time = going.metadata.deletion_timestamp;
    type Change<'a> = &'a dyn Fn(&mut Found);
    let changes: [(&str, Change<'_>); 5] = [
        ("deleted", &|found| {
            found.claim.metadata.deletion_timestamp = time.clone()
        }),
        ("deleted", &|found| {
            found.volume.metadata.deletion_timestamp = time.clone()
        }),
        ("not made by", &|found| {
            found.volume.metadata.annotations = None
        }),
        ("not bound", &|found| {
            found.claim.metadata.uid = Some("2".to_owned())
        }),
        ("not bound", &|found| found.claim.status = None),
    ];
    for (why, change) in changes {
        assert!(refused(change).contains(why), "{why}");
    }
}

#[test]
fn a_set_that_asks_for_more_or_would_make_the_claim_itself_speaks_against_it() {
    let with = |annotations: &Value, replicas: i32| Found {
        users: Users {
            pods: Vec::new(),
            sets: owner(set(annotations, replicas)),
        },
        ..found()
    };
    let uses = |found: &Found| nobody_uses(&found.users);
    let asks = json!({"grow.flexvol.dev/data": "30Mi"});
    let why = plan(&with(&asks, 0), None).unwrap_err();
    assert!(why.contains("grow.flexvol.dev/data=10Mi"), "{why}");
    let had = json!({"grow.flexvol.dev/data": "10Mi"});
    assert!(plan(&with(&had, 0), None).is_ok());
    assert_eq!(uses(&with(&had, 0)), Ok(()));
    let why = uses(&with(&had, 1)).unwrap_err();
    assert!(why.contains("--namespace=ns --replicas=0"), "{why}");
    for policy in ["whenScaled", "whenDeleted"] {
        let mut deletes = serde_json::to_value(set(&had, 1)).unwrap();
        deletes["spec"]["persistentVolumeClaimRetentionPolicy"] = json!({policy: "Delete"});
        let users = Users {
            sets: owner(from_value(deletes).unwrap()),
            ..Users::default()
        };
        let why = nobody_uses(&users).unwrap_err();
        assert!(why.contains("deletes claims with their data"), "{why}");
        assert!(why.contains(r#"{"spec":{"persistentVolumeClaimRetentionPolicy""#));
    }
    for other in ["data-db-01", "data-other-0", "log-db-0"] {
        assert!(Owner::of(&set(&had, 1), other).is_none(), "{other}");
    }
}

/// The set has created none of these pods yet, but may create any of their claims in the next moment.
#[test]
fn a_set_that_is_just_scaled_up_by_far_speaks_against_it() {
    for (claim, makes) in [
        ("data-db-300", true),
        ("data-db-504", true),
        ("data-db-505", false),
        ("data-db-4", false),
    ] {
        let mut large = set(&json!({}), 500);
        large.spec.ordinals = from_value(json!({"start": 5})).unwrap();
        large.status = from_value(json!({"replicas": 0})).unwrap();
        let users = Users {
            sets: vec![Owner::of(&large, claim).unwrap()],
            ..Users::default()
        };
        assert_eq!(nobody_uses(&users).is_err(), makes, "{claim}");
    }
    let mut last = set(&json!({}), 1);
    last.spec.ordinals = from_value(json!({"start": i32::MAX})).unwrap();
    let users = Users {
        sets: vec![Owner::of(&last, "data-db-2147483647").unwrap()],
        ..Users::default()
    };
    assert!(nobody_uses(&users).is_err(), "the last ordinal that is");
}

#[test]
fn a_pod_that_names_the_claim_speaks_against_it_also_one_that_has_ended() {
    let pod = |phase: &str, claim: &str| {
        let pod = json!({
            "metadata": {"name": "app"},
            "spec": {"containers": [], "volumes": [
                {"name": "v", "persistentVolumeClaim": {"claimName": claim}},
            ]},
            "status": {"phase": phase},
        });
        names(&from_value(pod).unwrap(), "data-db-0")
    };
    assert!(pod("Running", "data-db-0") && pod("Succeeded", "data-db-0"));
    assert!(!pod("Running", "other"));
    let users = Users {
        pods: vec!["app".to_owned()],
        sets: Vec::new(),
    };
    let why = nobody_uses(&users).unwrap_err();
    assert!(why.contains("have ended: app;"), "{why}");
}
