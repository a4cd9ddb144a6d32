//! What claims say that no order knows: of those that have none yet, and of what is asked beyond it.

use super::{PAGE, Row, SETTLED};
use crate::{
    names::{AWAITS_NODE, FAILED, volume_name},
    objects::StorageNode,
    observe::{capacity, condition, grows, is_bound, uid},
    pages, wish,
};
use anyhow::{Context, Result};
use k8s_openapi::{
    api::core::v1::{Event, PersistentVolumeClaim},
    jiff::Timestamp,
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A condition of a claim: kubelet could not grow the file system. Kubernetes has the name since 1.31.
const NODE_FAILED: &str = "NodeResizeError";

/// The claims that wait, by the names of their volumes.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Those that ask for more than they have.
    growing: HashMap<String, Row>,
    /// Those that have no volume.
    pending: BTreeMap<String, Row>,
}

impl Claims {
    /// Asks for claims, and for events of those that have no volume.
    pub(super) async fn list(client: &Client, nodes: &[StorageNode]) -> Result<Self> {
        let known = Known::of(nodes);
        let mut all = Claims::default();
        let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
        let pages = ListParams::default().limit(PAGE);
        let listed = pages::each(&claims, pages.clone(), |claim| all.add(claim, &known));
        listed.await.context("list the claims")?;
        if all.pending.is_empty() {
            return Ok(all);
        }
        let mut told = Told::default();
        let events: Api<Event> = Api::all(client.clone());
        let pages = pages.fields("involvedObject.kind=PersistentVolumeClaim");
        let listed = pages::each(&events, pages, |event| told.hear(event));
        listed.await.context("list the claims' events")?;
        for (volume, row) in &mut all.pending {
            row.why = told.of(volume).to_owned();
        }
        Ok(all)
    }

    fn add(&mut self, claim: &PersistentVolumeClaim, known: &Known) {
        if grows(claim) {
            let volume = claim
                .spec
                .as_ref()
                .and_then(|spec| spec.volume_name.clone());
            let volume = volume.unwrap_or_default();
            let row = row(claim, &volume, "growing", capacity(claim).to_string());
            let why = growth_waits_for(claim);
            self.growing.insert(volume, Row { why, ..row });
        } else if !is_bound(claim) && known.makes(claim) {
            let volume = volume_name(uid(&claim.metadata));
            let row = row(claim, "-", "waiting", "-".to_owned());
            self.pending.insert(volume, row);
        }
    }

    /// Puts right what an order says of its volume; a claim with an order is not listed again.
    pub(super) fn correct(&mut self, row: &mut Row) {
        self.pending.remove(&row.volume);
        let Some(growing) = self.growing.remove(&row.volume) else {
            return;
        };
        if row.state == SETTLED {
            row.state = growing.state;
            row.asked = growing.asked;
            row.has = growing.has;
        }
        if row.why.is_empty() {
            row.why = growing.why;
        }
    }

    /// Those that no order was found for.
    pub(super) fn without_order(self) -> impl Iterator<Item = Row> {
        self.pending.into_values()
    }
}

fn row(claim: &PersistentVolumeClaim, volume: &str, state: &'static str, has: String) -> Row {
    let asked = claim
        .spec
        .as_ref()
        .and_then(|spec| wish::request(spec).ok());
    Row {
        claim: format!(
            "{}/{}",
            claim.namespace().unwrap_or_default(),
            claim.name_any()
        ),
        volume: volume.to_owned(),
        node: wish::selected_node(claim).unwrap_or("-").to_owned(),
        state,
        asked: asked.map_or_else(|| "-".to_owned(), |asked| asked.to_string()),
        has,
        why: String::new(),
    }
}

fn growth_waits_for(claim: &PersistentVolumeClaim) -> String {
    let failed = [FAILED, NODE_FAILED].into_iter();
    let failed = failed.filter_map(|kind| condition(claim, kind)).next();
    match failed {
        Some(failed) => failed.message.clone().unwrap_or_default(),
        None if condition(claim, AWAITS_NODE).is_some() => {
            "the storage has grown, and the file system grows in the pod, or when one is started"
                .to_owned()
        }
        None => String::new(),
    }
}

/// What the nodes' agents look after. Which other names provisioners have, the controller alone knows; but
/// of their classes the agents say how much room there is.
struct Known<'a> {
    drivers: BTreeSet<&'a str>,
    classes: BTreeSet<&'a str>,
}

impl<'a> Known<'a> {
    fn of(nodes: &'a [StorageNode]) -> Self {
        let all = || nodes.iter().map(|node| &node.status);
        Known {
            drivers: all()
                .flat_map(|status| status.drivers.keys())
                .map(String::as_str)
                .collect(),
            classes: all()
                .flat_map(|status| status.capacities.keys())
                .map(String::as_str)
                .collect(),
        }
    }

    fn makes(&self, claim: &PersistentVolumeClaim) -> bool {
        let by_driver = wish::provisioner(claim).is_some_and(|name| self.drivers.contains(name));
        by_driver || wish::class_name(claim).is_some_and(|name| self.classes.contains(name))
    }
}

/// What was said last of each claim, by the name of its volume: a warning, if there is any. Kubernetes says
/// again and again that it waits.
#[derive(Debug, Default)]
struct Told(HashMap<String, ((bool, Option<Timestamp>), String)>);

impl Told {
    fn hear(&mut self, event: &Event) {
        let Some(uid) = &event.involved_object.uid else {
            return;
        };
        let last = event.last_timestamp.as_ref().map(|time| time.0);
        let when = last.or_else(|| event.event_time.as_ref().map(|time| time.0));
        let weight = (event.type_.as_deref() == Some("Warning"), when);
        let text = event
            .message
            .as_deref()
            .unwrap_or_default()
            .replace('\n', " ");
        let told = self.0.entry(volume_name(uid)).or_default();
        if weight >= told.0 {
            *told = (weight, text);
        }
    }

    fn of(&self, volume: &str) -> &str {
        self.0.get(volume).map_or("", |(_, text)| text)
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
        }))
        .unwrap()
    }

    fn listed(claims: &[PersistentVolumeClaim]) -> Claims {
        let node: StorageNode = from_value(json!({
            "apiVersion": StorageNode::api_version(),
            "kind": "StorageNode",
            "metadata": {"name": "n"},
            "status": {"drivers": {"a/b": {}}, "capacities": {"ours": 1}},
        }))
        .unwrap();
        let nodes = [node];
        let known = Known::of(&nodes);
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
    fn a_claim_of_ours_without_a_volume_waits_until_there_is_an_order() {
        let mut other = claim("3", "theirs", "Pending", &Value::Null);
        let mut all = listed(&[claim("1", "ours", "Pending", &Value::Null), other.clone()]);
        all.correct(&mut settled("pvc-1"));
        assert_eq!(all.without_order().count(), 0);

        let annotations = json!({"volume.kubernetes.io/storage-provisioner": "a/b"});
        other.metadata.annotations = from_value(annotations).unwrap();
        let rows: Vec<_> = listed(&[other]).without_order().collect();
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
    fn what_an_order_says_stays() {
        let mut row = settled("pvc-1");
        row.state = "being deleted";
        row.why = "the node is lost".to_owned();
        listed(&[claim("1", "ours", "Bound", &Value::Null)]).correct(&mut row);
        assert_eq!(
            (row.state, row.why.as_str()),
            ("being deleted", "the node is lost")
        );
    }

    #[test]
    fn of_what_was_said_of_a_claim_the_last_warning_counts() {
        let mut told = Told::default();
        let [first, second, third] =
            ["00:01", "00:02", "00:03"].map(|at| format!("2026-11-22T12:{at}Z"));
        told.hear(&event("1", "Normal", &first, "waits"));
        assert_eq!(told.of("pvc-1"), "waits");
        told.hear(&event("1", "Warning", &second, "has a\nselector"));
        told.hear(&event("1", "Warning", &first, "is older"));
        told.hear(&event("1", "Normal", &third, "waits"));
        assert_eq!(told.of("pvc-1"), "has a selector");
        assert_eq!(told.of("pvc-2"), "");
    }
}
