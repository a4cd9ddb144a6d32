//! Tests of the actions of a recovery, with a double of Kubernetes.

use super::*;
use crate::cli::recover::preconditions::{plan, tests::found};
use serde_json::{from_value, to_value};

/// The namespace of the claim.
const SAME: NamespaceIdentity<'_> = NamespaceIdentity {
    uid: "n-1",
    accepted: None,
};

/// Applies a merge patch (RFC 7386).
fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in fields {
        if value.is_null() {
            into.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut into[key], value);
        }
    }
}

/// The two objects, with Kubernetes' reactions.
struct Cluster {
    volume: Value,
    claim: Option<Value>,
}

impl Cluster {
    fn volume(&self) -> PersistentVolume {
        from_value(self.volume.clone()).unwrap()
    }

    fn claim(&self) -> Option<PersistentVolumeClaim> {
        self.claim.clone().map(|claim| from_value(claim).unwrap())
    }

    fn act(&mut self, next: &Move, note: &Note) {
        match next {
            Move::Delete(_) => {
                let meta = json!({
                    "deletionTimestamp": "2026-11-22T12:00:00Z",
                    "finalizers": ["kubernetes.io/pvc-protection"],
                });
                merge(self.claim.as_mut().unwrap(), &json!({"metadata": meta}));
            }
            Move::Offer(uid) => merge(&mut self.volume, &note.to_offer(uid)),
            Move::Make => {
                let mut claim = to_value(note.claim()).unwrap();
                claim["metadata"]["uid"] = "2".into();
                self.claim = Some(claim);
            }
            Move::GiveBack => merge(&mut self.volume, &note.to_give_back()),
            Move::Raise(_) => {
                let size = json!({"storage": note.size().to_string()});
                let patch = json!({"spec": {"resources": {"requests": size}}});
                merge(self.claim.as_mut().unwrap(), &patch);
            }
            Move::Wait(_) => self.bind_or_remove(),
            Move::Keep => merge(&mut self.volume, &note.to_keep().unwrap()),
            Move::Stop(why) => panic!("{why}"),
        }
    }

    fn bind_or_remove(&mut self) {
        let claim = self.claim.as_mut().unwrap();
        if !claim["metadata"]["deletionTimestamp"].is_null() {
            self.claim = None;
            return;
        }
        let capacity = &self.volume["spec"]["capacity"];
        assert_eq!(
            claim["spec"]["resources"]["requests"], *capacity,
            "Kubernetes binds none that is too small"
        );
        claim["status"] = json!({"phase": "Bound", "capacity": capacity});
        let holder = &self.volume["spec"]["claimRef"]["uid"];
        assert_eq!(*holder, claim["metadata"]["uid"], "it is another one's");
    }
}

/// A note for this claim, with its cluster.
fn noted(size: Option<Bytes>) -> (Note, Cluster) {
    let found = found();
    let note = Note::new(&found, &plan(&found, size).unwrap(), None);
    let mut cluster = Cluster {
        volume: to_value(&found.volume).unwrap(),
        claim: Some(to_value(&found.claim).unwrap()),
    };
    merge(&mut cluster.volume, &note.to_keep().unwrap());
    (note, cluster)
}

#[test]
fn each_move_leads_to_the_next_and_the_note_alone_knows_them() {
    for size in [None, Some(Bytes(20 << 20))] {
        let (_, mut cluster) = noted(size);
        let mut moves = Vec::new();
        // Each iteration knows only what a restarted command knows.
        while let Some(note) = Note::of(&cluster.volume()).unwrap() {
            assert_eq!(note.place(), ("ns", "data-db-0"));
            let next = note.next(&cluster.volume(), cluster.claim().as_ref(), SAME);
            let kept = &cluster.volume["spec"]["persistentVolumeReclaimPolicy"];
            assert_eq!(kept, "Retain", "{next}");
            let holder = &cluster.volume["spec"]["claimRef"]["uid"];
            assert!(holder.is_string(), "whoever takes the name has it: {next}");
            cluster.act(&next, &note);
            moves.push(next.to_string().split(' ').next().unwrap().to_owned());
        }
        let mut all = vec!["delete", "wait", "make", "offer", "wait"];
        all.extend(size.map(|_| "ask"));
        all.push("give");
        assert_eq!(moves, all);
        let spec = &cluster.volume["spec"];
        assert_eq!(spec["persistentVolumeReclaimPolicy"], "Delete");
        assert_eq!(spec["capacity"]["storage"], "10Mi");
        assert_eq!(spec["claimRef"]["uid"], "2");
        let claim = cluster.claim.unwrap();
        let asked = size.unwrap_or(Bytes(10 << 20)).to_string();
        assert_eq!(claim["spec"]["resources"]["requests"]["storage"], asked);
        assert_eq!(claim["metadata"]["annotations"], json!({"of": "people"}));
        assert_eq!(claim["metadata"]["labels"], json!({"app": "db"}));
    }
}

#[test]
fn no_claim_is_deleted_whose_volume_is_not_kept_or_not_its_own() {
    let next = |change: Value| {
        let (note, mut cluster) = noted(None);
        merge(&mut cluster.volume, &change);
        note.next(&cluster.volume(), cluster.claim().as_ref(), SAME)
    };
    assert!(matches!(next(json!({})), Move::Delete(_)));
    for change in [
        json!({"metadata": {"deletionTimestamp": "2026-11-22T12:00:00Z"}}),
        json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
        json!({"spec": {"claimRef": {"uid": "7"}}}),
        json!({"spec": {"claimRef": {"name": "other"}}}),
        json!({"spec": {"claimRef": null}}),
    ] {
        assert!(matches!(next(change.clone()), Move::Stop(_)), "{change}");
    }
}

#[test]
fn a_claim_that_somebody_else_made_gets_the_volume_or_is_told_of() {
    let next = |volume: &str, asked: &str, held_by: &str| {
        let (note, mut cluster) = noted(None);
        merge(&mut cluster.volume, &note.to_offer(held_by));
        let change = json!({
            "metadata": {"uid": "3"},
            "spec": {"volumeName": volume, "resources": {"requests": {"storage": asked}}},
            "status": {"phase": "Pending"},
        });
        merge(cluster.claim.as_mut().unwrap(), &change);
        note.next(&cluster.volume(), cluster.claim().as_ref(), SAME)
    };
    let stops = |next: Move, why: &str| match next {
        Move::Stop(said) => assert!(said.contains(why), "{said}"),
        other => panic!("{other}"),
    };
    let other = "with persistent volume pvc-3";
    stops(next("pvc-3", "10Mi", "3"), other);
    for volume in ["", "pvc-1"] {
        let offered = Move::Offer("3".to_owned());
        assert_eq!(next(volume, "10Mi", "1"), offered, "of the former");
        assert!(matches!(next(volume, "10Mi", "3"), Move::Wait(_)));
        stops(next(volume, "30Mi", "3"), "asks for 30Mi");
    }
}

#[test]
fn nothing_is_given_back_to_a_claim_that_is_being_deleted() {
    let (note, mut cluster) = noted(None);
    while let Some(note) = Note::of(&cluster.volume()).unwrap() {
        let next = note.next(&cluster.volume(), cluster.claim().as_ref(), SAME);
        if next == Move::GiveBack {
            break;
        }
        cluster.act(&next, &note);
    }
    let going = json!({"metadata": {"deletionTimestamp": "2026-11-22T12:00:00Z"}});
    merge(cluster.claim.as_mut().unwrap(), &going);
    let next = note.next(&cluster.volume(), cluster.claim().as_ref(), SAME);
    assert!(matches!(next, Move::Wait(_)), "{next}");
    cluster.claim = None;
    assert_eq!(note.next(&cluster.volume(), None, SAME), Move::Make);
    let deletes = json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}});
    merge(&mut cluster.volume, &deletes);
    assert_eq!(note.next(&cluster.volume(), None, SAME), Move::Keep);
}

/// The namespace's name may belong to another tenant now, who must not get the data.
#[test]
fn data_of_a_namespace_that_was_made_anew_go_to_whom_a_person_says() {
    let (note, mut cluster) = noted(None);
    assert_eq!(Note::of(&cluster.volume()).unwrap(), Some(note.clone()));
    let mut moves = Vec::new();
    loop {
        let next = |uid, accepted| {
            let place = NamespaceIdentity { uid, accepted };
            note.next(&cluster.volume(), cluster.claim().as_ref(), place)
        };
        let same = next("n-1", None);
        assert_eq!(next("n-2", Some("n-2")), same, "somebody has said so");
        for accepted in [None, Some("n-1"), Some("n-3"), Some("")] {
            let Move::Stop(why) = next("n-2", accepted) else {
                panic!("{same} in another namespace");
            };
            assert!(
                why.contains("UID n-2") && why.contains("in one of n-1,"),
                "{why}"
            );
            assert!(why.contains("--namespace-uid=n-2"), "{why}");
            let forget = "kubectl annotate pv pvc-1 flexvol.dev/recovery-";
            assert!(why.contains(forget), "{why}");
        }
        cluster.act(&same, &note);
        if same == Move::GiveBack {
            break;
        }
        moves.push(same);
    }
    assert!(moves.contains(&Move::Make) && moves.contains(&Move::Offer("2".to_owned())));
}

/// Format of version 0.1, before notes had the namespace's UID.
const WITHOUT_NAMESPACE: &str = r#"{"version":"1","former":"1","claim":{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"annotations":{"of":"people"},"labels":{"app":"db"},"name":"data-db-0","namespace":"ns"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"10Mi"}},"storageClassName":"c","volumeName":"pvc-1"}},"size":10485760,"reclaimPolicy":"Delete"}"#;

#[test]
fn a_note_that_knows_no_namespace_is_finished_for_the_former_claim_or_for_whom_a_person_says() {
    let (_, mut cluster) = noted(None);
    cluster.volume["metadata"]["annotations"][RECOVERY] = WITHOUT_NAMESPACE.into();
    let note = Note::of(&cluster.volume()).unwrap().unwrap();
    let kept = note.to_keep().unwrap();
    assert_eq!(
        kept["metadata"]["annotations"][RECOVERY], WITHOUT_NAMESPACE,
        "it stays the same note"
    );
    let next = |cluster: &Cluster, accepted| {
        let place = NamespaceIdentity {
            uid: "n-1",
            accepted,
        };
        note.next(&cluster.volume(), cluster.claim().as_ref(), place)
    };
    let delete = next(&cluster, None);
    assert!(matches!(delete, Move::Delete(_)), "{delete}");
    cluster.act(&delete, &note);
    let wait = next(&cluster, None);
    assert!(matches!(wait, Move::Wait(_)), "{wait}");
    cluster.act(&wait, &note);
    for accepted in [None, Some("n-2")] {
        let Move::Stop(why) = next(&cluster, accepted) else {
            panic!("nobody knows whose the namespace is");
        };
        assert!(why.contains("--namespace-uid=n-1"), "{why}");
        assert!(
            why.contains("kubectl annotate pv pvc-1 flexvol.dev/recovery-"),
            "{why}"
        );
    }
    assert_eq!(next(&cluster, Some("n-1")), Move::Make);
}

#[test]
fn a_claim_that_has_grown_meanwhile_stays() {
    let (note, cluster) = noted(None);
    let mut claim = cluster.claim.clone().unwrap();
    claim["status"]["capacity"]["storage"] = "30Mi".into();
    let claim = from_value(claim).unwrap();
    let next = note.next(&cluster.volume(), Some(&claim), SAME);
    assert!(next.to_string().contains("grown"), "{next}");
}

#[test]
fn a_volume_that_was_given_to_another_claim_stays_there() {
    let (note, mut cluster) = noted(None);
    cluster.claim = None;
    let next = |cluster: &Cluster| note.next(&cluster.volume(), None, SAME);
    assert_eq!(next(&cluster), Move::Make);
    let rescued = json!({"spec": {"claimRef": {"name": "restored", "uid": "9"}}});
    merge(&mut cluster.volume, &rescued);
    let said = next(&cluster).to_string();
    assert!(said.contains("to claim ns/restored"), "{said}");
    merge(&mut cluster.volume, &json!({"spec": {"claimRef": null}}));
    assert_eq!(next(&cluster), Move::Make, "taken from its former claim");
}

#[test]
fn a_second_note_gives_back_what_the_first_one_would() {
    let (first, cluster) = noted(None);
    let mut found = found();
    found.volume = cluster.volume();
    let second = Note::new(&found, &plan(&found, None).unwrap(), Some(&first));
    assert_eq!(second, first);
}

#[test]
fn a_note_that_cannot_be_read_is_named() {
    let (note, cluster) = noted(None);
    let mut newer = to_value(&note).unwrap();
    newer["version"] = "2".into();
    for text in ["{}".to_owned(), newer.to_string()] {
        let mut volume = cluster.volume();
        let annotations = volume.metadata.annotations.as_mut().unwrap();
        annotations.insert(RECOVERY.to_owned(), text);
        let error = Note::of(&volume).unwrap_err().to_string();
        assert!(
            error.contains(RECOVERY) && error.contains("pvc-1"),
            "{error}"
        );
        let shown = crate::cli::recover::to_finish(&volume).unwrap_or_default();
        assert!(shown.contains(&error), "{shown}");
    }
}
