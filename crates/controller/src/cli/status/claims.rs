//! State from claims that no NodeVolume has: claims without a NodeVolume, and requests beyond it.

use super::{GROWING, Row, SETTLED};
use crate::{
    api::{
        v1alpha1::StorageNodeStatus,
        well_known::{
            CLAIM_FINALIZER, CONTROLLER, FAILED, FILE_SYSTEM_RESIZE_PENDING, volume_name,
        },
    },
    client::{MaybePartial, paginate},
    k8s::{
        claim::{self, capacity, condition, is_expanding},
        meta::{has_finalizer, uid},
    },
};
use anyhow::{Context, Result};
use k8s_openapi::{
    api::core::v1::{Event, PersistentVolumeClaim},
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, ObjectMeta},
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Condition of a claim: kubelet could not grow the file system. Kubernetes has used this name since 1.31.
const NODE_FAILED: &str = "NodeResizeError";

/// State of a claim of which only the identity is known.
const UNREADABLE: &str = "not understood";

/// Waiting claims, by the names of their volumes.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Claims that request more than they have.
    growing: HashMap<String, Expanding>,
    /// Claims without a volume.
    pending: BTreeMap<String, Pending>,
}

#[derive(Debug)]
struct Expanding {
    asked: String,
    has: String,
    why: String,
}

#[derive(Debug)]
struct Pending {
    row: Row,
    /// Whether the volume is ours to make, as far as is known.
    ours: bool,
    /// Whether `why` in the row is a warning, and its time.
    said: (bool, Option<Timestamp>),
}

impl Claims {
    /// Lists claims, and their events if any claim has no volume.
    pub(super) async fn list<'a>(
        client: &Client,
        reports: impl Iterator<Item = &'a StorageNodeStatus> + Clone,
    ) -> Result<Self> {
        let known = ServedByAgents::of(reports);
        let mut all = Claims::default();
        // Anybody may write a claim or an event that cannot be understood.
        let claims: Api<MaybePartial<PersistentVolumeClaim>> = Api::all(client.clone());
        let pages = ListParams::default().limit(paginate::PAGE_SIZE);
        let listed = paginate::each(&claims, pages.clone(), |claim| match claim.object() {
            Some(claim) => all.add(claim, &known),
            None => all.add_unreadable(claim.meta()),
        });
        listed.await.context("list the claims")?;
        let unexplained = |pending: &Pending| pending.row.why.is_empty();
        if all.pending.values().any(unexplained) {
            let events: Api<MaybePartial<Event>> = Api::all(client.clone());
            let pages = pages.fields("involvedObject.kind=PersistentVolumeClaim");
            let heard = paginate::each(&events, pages, |event| {
                if let Some(event) = event.object() {
                    all.hear(event);
                }
            });
            match heard.await {
                // Without permission to read events, the reasons are missing.
                Err(kube::Error::Api(status)) if status.code == 403 => {}
                listed => listed.context("list the claims' events")?,
            }
        }
        all.pending.retain(|_, pending| pending.ours);
        Ok(all)
    }

    fn add(&mut self, claim: &PersistentVolumeClaim, known: &ServedByAgents<'_>) {
        let phase = claim
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        if is_expanding(claim) {
            let growing = Expanding {
                asked: asked(claim),
                has: capacity(claim).to_string(),
                why: expansion_waits_for(claim),
            };
            let volume = claim
                .spec
                .as_ref()
                .and_then(|spec| spec.volume_name.clone());
            self.growing.insert(volume.unwrap_or_default(), growing);
        } else if phase == Some("Pending") && claim.metadata.deletion_timestamp.is_none() {
            let held = has_finalizer(&claim.metadata, CLAIM_FINALIZER);
            let pending = Pending {
                row: row(claim),
                ours: held || known.makes(claim),
                said: (false, None),
            };
            let volume = volume_name(uid(&claim.metadata));
            self.pending.insert(volume, pending);
        }
    }

    /// Adds a claim of which only the identity is known, so nobody knows whether it is ours.
    fn add_unreadable(&mut self, claim: &ObjectMeta) {
        let why = "what the claim asks for is unknown; look at its managed fields by kubectl get --output=yaml --show-managed-fields";
        let row = Row {
            state: UNREADABLE,
            why: why.to_owned(),
            ..row(&PersistentVolumeClaim {
                metadata: claim.clone(),
                ..PersistentVolumeClaim::default()
            })
        };
        let pending = Pending {
            row,
            ours: true,
            said: (false, None),
        };
        self.pending.insert(volume_name(uid(claim)), pending);
    }

    /// Keeps the last warning about a claim, or else the last event: Kubernetes repeats that it waits.
    fn hear(&mut self, event: &Event) {
        let uid = event.involved_object.uid.as_deref().unwrap_or_default();
        let Some(pending) = self.pending.get_mut(&volume_name(uid)) else {
            return;
        };
        let source = event.source.as_ref();
        pending.ours |= source.and_then(|source| source.component.as_deref()) == Some(CONTROLLER);
        let last = event.last_timestamp.as_ref().map(|time| time.0);
        let when = last.or_else(|| event.event_time.as_ref().map(|time| time.0));
        let said = (event.type_.as_deref() == Some("Warning"), when);
        if said >= pending.said {
            pending.said = said;
            pending.row.why = event.message.clone().unwrap_or_default();
        }
    }

    /// Corrects a NodeVolume's row, and drops the claim's own row.
    pub(super) fn correct(&mut self, row: &mut Row) {
        if let Some(pending) = self.pending.remove(&row.volume)
            && row.why.is_empty()
        {
            row.why = pending.row.why;
            if pending.row.state == UNREADABLE && row.state == SETTLED {
                row.state = UNREADABLE;
            }
        }
        if let Some(growing) = self.growing.remove(&row.volume)
            && row.state == SETTLED
        {
            row.state = GROWING;
            row.asked = growing.asked;
            row.has = growing.has;
            row.why = growing.why;
        }
    }

    /// Rows of claims without a NodeVolume.
    pub(super) fn without_node_volume(self) -> impl Iterator<Item = Row> {
        self.pending.into_values().map(|pending| pending.row)
    }
}

fn row(claim: &PersistentVolumeClaim) -> Row {
    Row {
        claim: format!(
            "{}/{}",
            claim.namespace().unwrap_or_default(),
            claim.name_any()
        ),
        volume: "-".to_owned(),
        node: claim::selected_node(claim).unwrap_or("-").to_owned(),
        state: "waiting",
        asked: asked(claim),
        has: "-".to_owned(),
        why: String::new(),
    }
}

fn asked(claim: &PersistentVolumeClaim) -> String {
    let spec = claim.spec.as_ref();
    let asked = spec.and_then(|spec| claim::request(spec).ok());
    asked.map_or_else(|| "-".to_owned(), |asked| asked.to_string())
}

fn expansion_waits_for(claim: &PersistentVolumeClaim) -> String {
    let failed = [FAILED, NODE_FAILED].into_iter();
    let failed = failed.filter_map(|kind| condition(claim, kind)).next();
    match failed {
        Some(failed) => failed.message.clone().unwrap_or_default(),
        None if condition(claim, FILE_SYSTEM_RESIZE_PENDING).is_some() => {
            "the storage has grown, and the file system grows in the pod, or when one is started"
                .to_owned()
        }
        None => String::new(),
    }
}

/// What the nodes' agents serve. Only the controller knows the provisioners' second names, but the agents report the
/// capacities of their classes. If no node has a driver, the controller's events show that a claim is ours.
struct ServedByAgents<'a> {
    drivers: BTreeSet<&'a str>,
    classes: BTreeSet<&'a str>,
}

impl<'a> ServedByAgents<'a> {
    fn of(reports: impl Iterator<Item = &'a StorageNodeStatus> + Clone) -> Self {
        ServedByAgents {
            drivers: reports
                .clone()
                .flat_map(|status| status.drivers.keys())
                .map(String::as_str)
                .collect(),
            classes: reports
                .flat_map(|status| status.capacities.keys())
                .map(String::as_str)
                .collect(),
        }
    }

    fn makes(&self, claim: &PersistentVolumeClaim) -> bool {
        let by_driver = claim::provisioner(claim).is_some_and(|name| self.drivers.contains(name));
        by_driver || claim::class_name(claim).is_some_and(|name| self.classes.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    fn claim(uid: &str, class: &str, phase: &str, conditions: &Value) -> PersistentVolumeClaim {
        from_value(json!({
            "metadata": {"name": "data", "namespace": "ns", "uid": uid},
            "spec": {
                "storageClassName": class,
                "volumeName": (phase == "Bound").then(|| format!("pvc-{uid}")),
                "resources": {"requests": {"storage": "2Gi"}},
            },
            "status": {"phase": phase, "capacity": {"storage": "1Gi"}, "conditions": conditions},
        }))
        .unwrap()
    }

    fn event(uid: &str, kind: &str, at: &str, message: &str) -> Event {
        from_value(json!({
            "metadata": {},
            "involvedObject": {"uid": uid},
            "type": kind,
            "lastTimestamp": at,
            "message": message,
            "source": {"component": if kind == "Warning" { CONTROLLER } else { "others" }},
        }))
        .unwrap()
    }

    fn listed(claims: &[PersistentVolumeClaim]) -> Claims {
        let report = json!({"drivers": {"a/b": {}}, "capacities": {"ours": 1}});
        let reports = [from_value(report).unwrap()];
        let known = ServedByAgents::of(reports.iter());
        let mut all = Claims::default();
        for claim in claims {
            all.add(claim, &known);
        }
        all
    }

    fn settled(volume: &str) -> Row {
        Row {
            claim: "ns/data".to_owned(),
            volume: volume.to_owned(),
            node: "n".to_owned(),
            state: SETTLED,
            asked: "1Gi".to_owned(),
            has: "1Gi".to_owned(),
            why: String::new(),
        }
    }

    #[test]
    fn a_claim_of_ours_without_a_volume_waits_until_there_is_a_node_volume() {
        let mut other = claim("3", "theirs", "Pending", &Value::Null);
        let ours = |claims: &[PersistentVolumeClaim]| {
            let mut all = listed(claims);
            all.pending.retain(|_, pending| pending.ours);
            all
        };
        let mut all = ours(&[
            claim("1", "ours", "Pending", &Value::Null),
            claim("2", "ours", "Lost", &Value::Null),
            other.clone(),
        ]);
        all.correct(&mut settled("pvc-1"));
        assert_eq!(all.without_node_volume().count(), 0);

        let annotations = json!({"volume.kubernetes.io/storage-provisioner": "a/b"});
        other.metadata.annotations = from_value(annotations).unwrap();
        let rows: Vec<_> = ours(&[other]).without_node_volume().collect();
        let [row] = rows.as_slice() else {
            panic!("{rows:?}")
        };
        let said = [&row.claim, row.state, &row.asked, &row.has, &row.node];
        assert_eq!(said, ["ns/data", "waiting", "2Gi", "-", "-"]);
    }

    #[test]
    fn a_claim_that_asks_for_more_than_it_has_is_not_settled() {
        let condition = |kind: &str| json!([{"type": kind, "status": "True", "message": "why"}]);
        for (conditions, why) in [
            (Value::Null, ""),
            (condition("ControllerResizeError"), "why"),
            (condition("NodeResizeError"), "why"),
            (
                condition("FileSystemResizePending"),
                "the storage has grown, and the file system grows in the pod, or when one is started",
            ),
        ] {
            let mut row = settled("pvc-1");
            listed(&[claim("1", "theirs", "Bound", &conditions)]).correct(&mut row);
            let said = [row.state, &row.asked, &row.has, &row.why];
            assert_eq!(said, ["growing", "2Gi", "1Gi", why]);
        }
    }

    #[test]
    fn a_claim_that_is_not_understood_is_named_and_hides_no_other() {
        let claim = json!({
            "metadata": {
                "name": "data", "namespace": "ns", "uid": "1",
                "managedFields": [{"time": "10000-01-01T11:59:59Z"}],
            },
        });
        let claim: MaybePartial<PersistentVolumeClaim> = from_value(claim).unwrap();
        assert!(claim.object().is_none());
        let mut all = listed(&[]);
        all.add_unreadable(claim.meta());
        let mut row = settled("pvc-1");
        all.correct(&mut row);
        assert_eq!(row.state, UNREADABLE);
        all.add_unreadable(claim.meta());
        let rows: Vec<_> = all.without_node_volume().collect();
        assert!(rows.len() == 1 && rows[0].claim == "ns/data", "{rows:?}");
    }

    #[test]
    fn what_a_node_volume_says_stays() {
        let mut row = settled("pvc-1");
        row.state = "being deleted";
        listed(&[claim("1", "ours", "Bound", &Value::Null)]).correct(&mut row);
        assert_eq!((row.state, row.why.as_str()), ("being deleted", ""));

        let mut all = listed(&[claim("1", "ours", "Pending", &Value::Null)]);
        all.hear(&event("1", "Warning", "2026-11-22T12:00:01Z", "no room"));
        let mut row = settled("pvc-1");
        all.correct(&mut row);
        assert_eq!(row.why, "no room", "it says nothing itself");
    }

    #[test]
    fn of_what_was_said_of_a_claim_the_last_warning_counts_and_tells_that_it_is_ours() {
        let mut all = listed(&[
            claim("1", "theirs", "Pending", &Value::Null),
            claim("2", "theirs", "Pending", &Value::Null),
        ]);
        let said = |all: &Claims, volume: &str| {
            let pending = &all.pending[volume];
            (pending.ours, pending.row.why.clone())
        };
        let [first, second, third] =
            ["00:01", "00:02", "00:03"].map(|at| format!("2026-11-22T12:{at}Z"));
        all.hear(&event("1", "Normal", &first, "waits"));
        assert_eq!(said(&all, "pvc-1"), (false, "waits".to_owned()));
        all.hear(&event("1", "Warning", &second, "has a selector"));
        all.hear(&event("1", "Warning", &first, "is older"));
        all.hear(&event("1", "Normal", &third, "waits"));
        all.hear(&event("3", "Warning", &third, "is another's"));
        assert_eq!(said(&all, "pvc-1"), (true, "has a selector".to_owned()));
        assert_eq!(said(&all, "pvc-2"), (false, String::new()));
    }
}
