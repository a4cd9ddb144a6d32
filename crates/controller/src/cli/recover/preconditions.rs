//! What speaks against taking a growth back.

use crate::{
    api::{drivers::Driver, labels::GROW, v1alpha1::NodeVolume},
    decide::{Answer, believed},
    k8s::{
        claim::{capacity, request},
        pod::{Pod, claims_of},
        stateful_set::{claim_name, templates, wanted, wanted_ordinals},
        volume::{driver_of, has, is_ours},
    },
    observe::node_volume_of,
};
use flexvol_sdk::Bytes;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolume, PersistentVolumeClaim},
};
use kube::ResourceExt;

/// What is there.
#[derive(Debug)]
pub(super) struct Found {
    /// The UID of the claim's namespace.
    pub namespace: String,
    pub claim: PersistentVolumeClaim,
    /// The one that the claim names.
    pub volume: PersistentVolume,
    pub node_volume: Option<NodeVolume>,
    pub users: Users,
}

/// Who has to do with the claim.
#[derive(Debug, Default)]
pub(super) struct Users {
    /// The pods that name it.
    pub pods: Vec<String>,
    /// The sets whose claim it is, by its name.
    pub sets: Vec<Owner>,
}

/// A set, and which of its claims it is.
#[derive(Debug)]
pub(super) struct Owner {
    set: StatefulSet,
    template: String,
    ordinal: i64,
}

/// What becomes of the claim.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// What it asks for.
    pub asked: Bytes,
    /// What its storage has.
    pub has: Bytes,
    /// What its file system has for certain, with which it is made anew.
    pub base: Bytes,
    /// What it shall ask for.
    pub to: Bytes,
}

/// What is to be done for a claim, to have it ask for `size`, or else for what it has; or why nothing is.
pub(super) fn plan(found: &Found, size: Option<Bytes>) -> Result<Plan, String> {
    let Found { claim, volume, .. } = found;
    let name = volume.name_any();
    if claim.metadata.deletion_timestamp.is_some() {
        return Err("the claim is being deleted already".to_owned());
    }
    let any = driver_of(volume).map(Driver::named).into_iter().collect();
    if !is_ours(volume, &any) {
        return Err(format!(
            "persistent volume {name} was not made by this controller"
        ));
    }
    if !has(claim, volume) {
        return Err(format!("the claim is not bound to {name} yet"));
    }
    if volume.metadata.deletion_timestamp.is_some() {
        return Err(format!("persistent volume {name} is being deleted"));
    }
    let spec = claim.spec.clone().unwrap_or_default();
    let (asked, base) = (request(&spec)?, capacity(claim));
    let node_volume = found
        .node_volume
        .as_ref()
        .map(|node_volume| node_volume_of(node_volume, &any));
    let measured = node_volume.and_then(|node_volume| match node_volume.answer {
        // What a node says that nothing explains tells nothing.
        Answer::Present(said) => {
            said.filter(|said| believed(*said, node_volume.size, node_volume.most) == *said)
        }
        _ => None,
    });
    // What the claim says was had once, and nothing becomes smaller.
    let has = measured.unwrap_or(base).max(base);
    if asked <= has {
        return Err(format!(
            "the claim asks for {asked}, and its storage has {has}: there is nothing to take back"
        ));
    }
    let to = size.unwrap_or(has);
    if to < has {
        return Err(format!(
            "{to} is less than the {has} that the storage has, and nothing makes it smaller"
        ));
    }
    if to >= asked {
        return Err(format!(
            "{to} is not less than the {asked} that the claim asks for; to grow it, edit it"
        ));
    }
    asked_by_none(found, to)?;
    Ok(Plan {
        asked,
        has,
        base,
        to,
    })
}

/// A set whose annotation asks for more would ask for it again at once.
fn asked_by_none(found: &Found, to: Bytes) -> Result<(), String> {
    for Owner {
        set, template: of, ..
    } in &found.users.sets
    {
        let mut sizes = wanted(set).into_iter();
        let more =
            sizes.find_map(|(name, size)| size.ok().filter(|size| name == *of && *size > to));
        if let Some(size) = more {
            return Err(format!(
                "stateful set {set} asks for {size} by its annotation {GROW}{of}; lower that first: kubectl annotate statefulset {set} {} --overwrite {GROW}{of}={to}",
                namespace(set),
                set = set.name_any()
            ));
        }
    }
    Ok(())
}

/// Whether the claim can be made anew: a claim that a pod uses does not go, and one that a set misses is made
/// by the set.
pub(super) fn nobody_uses(users: &Users) -> Result<(), String> {
    let makes = |owner: &&Owner| wanted_ordinals(&owner.set).contains(&owner.ordinal);
    if let Some(Owner { set, ordinal, .. }) = users.sets.iter().find(makes) {
        let (name, place) = (set.name_any(), namespace(set));
        if deletes_claims(set) {
            return Err(format!(
                "stateful set {name} uses the claim, and deletes claims with their data when it is scaled down or deleted; change that first: kubectl patch statefulset {name} {place} --patch '{{\"spec\":{{\"persistentVolumeClaimRetentionPolicy\":{{\"whenScaled\":\"Retain\",\"whenDeleted\":\"Retain\"}}}}}}'"
            ));
        }
        return Err(format!(
            "stateful set {name} would make the claim anew with its template's size; scale it down meanwhile, and whoever scales it: kubectl scale statefulset {name} {place} --replicas={}",
            ordinal.saturating_sub(wanted_ordinals(set).start)
        ));
    }
    match users.pods.as_slice() {
        [] => Ok(()),
        pods => Err(format!(
            "the claim has to be made anew, and does not go while pods name it, not even pods that have ended: {}; scale down whoever makes them, or delete them",
            pods.join(", ")
        )),
    }
}

fn namespace(set: &StatefulSet) -> String {
    format!("--namespace={}", set.namespace().unwrap_or_default())
}

fn deletes_claims(set: &StatefulSet) -> bool {
    let policy = set.spec.persistent_volume_claim_retention_policy.as_ref();
    let said = policy
        .iter()
        .flat_map(|policy| [&policy.when_scaled, &policy.when_deleted]);
    said.flatten().any(|said| said == "Delete")
}

/// Whether a pod names a claim. Kubernetes lets none go that a pod names, though it has ended
/// (`podUsesPVC` in `pkg/controller/volume/pvcprotection`).
pub(super) fn names(pod: &Pod, claim: &str) -> bool {
    claims_of(pod).iter().any(|name| name == claim)
}

impl Owner {
    /// Of a claim of this name, if it is that of one of the set's.
    pub(super) fn of(set: &StatefulSet, claim: &str) -> Option<Self> {
        let ordinal = claim.rsplit_once('-')?.1.parse().ok()?;
        let mut names = templates(set).into_iter();
        let template = names.find(|template| claim_name(set, template, ordinal) == claim)?;
        Some(Owner {
            set: set.clone(),
            template: template.to_owned(),
            ordinal,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    /// The claim of a set's first pod, which asks for 30 MiB and has 10, as its storage has.
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
            "apiVersion": "flexvol.dev/v1alpha1", "kind": "NodeVolume", "metadata": {},
            "spec": {
                "driver": "a/b", "node": "n", "wanted": "Present", "size": 30 << 20,
                "claim": {"namespace": "ns", "name": "data-db-0", "uid": "1"},
            },
            "status": {"found": "Present", "size": size},
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
        assert_eq!(to(Some(1 << 20), None), Ok(10), "its node boasts");
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

    /// It has made none of its pods yet, and makes any of their claims in the next moment.
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
}
