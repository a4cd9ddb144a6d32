//! Room that the scheduler knows of, so that a pod is sent where its volume can be had.
//!
//! Of a claim whose class has a provisioner with a `CSIDriver` the scheduler takes only nodes with a
//! `CSIStorageCapacity` of the class that is large enough (`hasEnoughCapacity` in
//! `pkg/scheduler/framework/plugins/volumebinding/binder.go`). It takes nothing off when it has sent a pod
//! there, so a node may be full nevertheless; then the claim is given back to it as it is without all this.

use crate::{
    act::hostname,
    api::{Refusal, refusal, words},
    controller::Controller,
    log,
    names::{HOSTNAME, MANAGED, checksum},
    nodes::{Nodes, Room},
    objects::StorageNode,
    ours::Ours,
    pages,
    queue::pause_after,
};
use anyhow::{Context, Result};
use flexvol_sdk::Bytes;
use k8s_openapi::api::{
    core::v1::Node,
    storage::v1::{CSIStorageCapacity, StorageClass},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

/// How often it is looked what has changed.
const PERIOD: Duration = Duration::from_secs(5);

/// How often it is looked whether what was told is still there.
const TRUST: Duration = Duration::from_secs(300);

/// The longest pause after failures: before 1.24 Kubernetes has no such objects.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// What shall be told, by the name of its object.
type Wanted = BTreeMap<String, (String, Room)>;

/// What is told, by the name of its object.
type Told = BTreeMap<String, Fact>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Fact {
    /// The UID of what the node's agent says.
    of: String,
    largest: Bytes,
}

#[derive(Debug, PartialEq, Eq)]
enum Change<'a> {
    Tell(&'a str, &'a str, &'a Room),
    Correct(&'a str, Bytes),
    TakeBack(&'a str),
}

/// Tells the scheduler for ever of the room for the controller's drivers, in objects of this namespace.
pub async fn tell(client: Client, namespace: String, controller: Arc<Controller>) {
    if !controller.ours.any_scheduled() {
        return;
    }
    let teller = Teller { client, namespace };
    let mut known: Option<(Instant, Told)> = None;
    let mut failures = 0u32;
    loop {
        sleep(PERIOD.max(pause_after(failures, LONGEST_PAUSE))).await;
        if !controller.is_ready() {
            continue;
        }
        known = known.filter(|(since, _)| since.elapsed() < TRUST);
        match teller
            .round(&controller.nodes, &controller.ours, &mut known)
            .await
        {
            Ok(()) => failures = 0,
            Err(error) => {
                known = None;
                // Somebody else has written, which is seen in the next round.
                let other = error.downcast_ref().map(refusal);
                if other.is_none_or(|refusal| refusal == Refusal::Other) || failures > 0 {
                    let error = words(&error);
                    log::warn(
                        "cannot tell the scheduler what room there is",
                        &[("error", &error)],
                    );
                }
                failures = failures.saturating_add(1);
            }
        }
    }
}

struct Teller {
    client: Client,
    namespace: String,
}

impl Teller {
    async fn round(
        &self,
        nodes: &Nodes,
        ours: &Ours,
        known: &mut Option<(Instant, Told)>,
    ) -> Result<()> {
        let api: Api<CSIStorageCapacity> = Api::namespaced(self.client.clone(), &self.namespace);
        if known.is_none() {
            *known = Some((Instant::now(), told(&api).await?));
        }
        let Some((_, told)) = known else {
            return Ok(());
        };
        let wanted = self.wanted(nodes, ours).await?;
        let before = told.clone();
        for change in changes(&wanted, &before) {
            match change {
                Change::Tell(name, class, room) => {
                    let nodes: Api<Node> = Api::all(self.client.clone());
                    let node = nodes.get_opt(&room.node).await.context("read the node")?;
                    let Some(node) = node else { continue };
                    let object =
                        serde_json::from_value(capacity(name, class, room, &hostname(&node)?))
                            .context("write a capacity")?;
                    api.create(&PostParams::default(), &object).await?;
                    told.insert(name.to_owned(), fact_of(room));
                }
                Change::Correct(name, largest) => {
                    let patch = json!({"capacity": largest.to_string()});
                    let patch = Patch::Merge(&patch);
                    api.patch(name, &PatchParams::default(), &patch).await?;
                    if let Some(fact) = told.get_mut(name) {
                        fact.largest = largest;
                    }
                }
                Change::TakeBack(name) => {
                    api.delete(name, &DeleteParams::default()).await?;
                    told.remove(name);
                }
            }
        }
        Ok(())
    }

    async fn wanted(&self, nodes: &Nodes, ours: &Ours) -> Result<Wanted> {
        let classes: Api<StorageClass> = Api::all(self.client.clone());
        // As the API server remembers them: they are looked at again soon.
        let listed = classes.list(&ListParams::default().match_any()).await;
        let mut wanted = Wanted::new();
        for class in listed.context("list storage classes")? {
            let Some(driver) = ours.scheduled(&class.provisioner) else {
                continue;
            };
            let class = class.name_any();
            for room in nodes.rooms(driver, &class) {
                wanted.insert(object_name(&class, &room.node), (class.clone(), room));
            }
        }
        Ok(wanted)
    }
}

/// What was told of room, whoever told it.
async fn told(api: &Api<CSIStorageCapacity>) -> Result<Told> {
    let mut told = Told::new();
    let page = ListParams::default()
        .labels(&format!("{MANAGED}=true"))
        .limit(500);
    pages::each(api, page, |object| {
        told.insert(object.name_any(), fact(object));
    })
    .await
    .context("list what the scheduler was told")?;
    Ok(told)
}

fn fact(object: &CSIStorageCapacity) -> Fact {
    let owner = object.metadata.owner_references.iter().flatten().next();
    let largest = object.capacity.as_ref();
    Fact {
        of: owner.map(|owner| owner.uid.clone()).unwrap_or_default(),
        largest: largest
            .and_then(|size| size.0.parse().ok())
            .unwrap_or_default(),
    }
}

fn fact_of(room: &Room) -> Fact {
    Fact {
        of: room.uid.clone(),
        largest: room.largest,
    }
}

/// What has to be written. What is said for another than the node's present agent is taken back before
/// it is said anew: with the former one Kubernetes deletes it.
fn changes<'a>(wanted: &'a Wanted, told: &'a Told) -> Vec<Change<'a>> {
    let stale = told
        .iter()
        .filter(|(name, fact)| {
            wanted
                .get(*name)
                .is_none_or(|(_, room)| room.uid != fact.of)
        })
        .map(|(name, _)| Change::TakeBack(name));
    let new = wanted.iter().filter_map(|(name, (class, room))| {
        let Some(fact) = told.get(name) else {
            return Some(Change::Tell(name, class, room));
        };
        let differs = fact.of == room.uid && fact.largest != room.largest;
        differs.then_some(Change::Correct(name, room.largest))
    });
    stale.chain(new).collect()
}

/// Names of classes and nodes together may be longer than a name.
fn object_name(class: &str, node: &str) -> String {
    format!("flexvol-{:016x}", checksum(&format!("{class}/{node}")))
}

fn capacity(name: &str, class: &str, room: &Room, hostname: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIStorageCapacity",
        "metadata": {
            "name": name,
            "labels": {MANAGED: "true"},
            "ownerReferences": [{
                "apiVersion": StorageNode::api_version(),
                "kind": "StorageNode",
                "name": room.node,
                "uid": room.uid,
            }],
        },
        "storageClassName": class,
        "capacity": room.largest.to_string(),
        "nodeTopology": {"matchLabels": {HOSTNAME: hostname}},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::from_value;

    fn room(node: &str, uid: &str, largest: u64) -> Room {
        Room {
            node: node.to_owned(),
            uid: uid.to_owned(),
            largest: Bytes(largest),
        }
    }

    fn wanted(rooms: &[Room]) -> Wanted {
        let named = rooms.iter().map(|room| {
            let name = object_name("disk", &room.node);
            (name, ("disk".to_owned(), room.clone()))
        });
        named.collect()
    }

    fn told(rooms: &[Room]) -> Told {
        let named = rooms
            .iter()
            .map(|room| (object_name("disk", &room.node), fact_of(room)));
        named.collect()
    }

    #[test]
    fn only_what_differs_is_written() {
        let is = [room("a", "1", 10), room("b", "2", 20)];
        assert_eq!(changes(&wanted(&is), &told(&is)), []);
        let (a, b) = (object_name("disk", "a"), object_name("disk", "b"));
        let more = wanted(&[is[0].clone(), room("b", "2", 30)]);
        assert_eq!(changes(&more, &told(&is)), [Change::Correct(&b, Bytes(30))]);
        let one = wanted(&is[..1]);
        assert_eq!(changes(&one, &told(&is)), [Change::TakeBack(&b)]);
        let both = wanted(&is);
        assert_eq!(
            changes(&both, &told(&is[1..])),
            [Change::Tell(&a, "disk", &is[0])]
        );
    }

    #[test]
    fn what_a_former_agent_said_is_taken_back_before_it_is_said_anew() {
        let (former, now) = (room("a", "1", 10), room("a", "2", 30));
        let name = object_name("disk", "a");
        let wanted = wanted(std::slice::from_ref(&now));
        assert_eq!(
            changes(&wanted, &told(&[former])),
            [Change::TakeBack(&name)]
        );
        assert_eq!(
            changes(&wanted, &Told::new()),
            [Change::Tell(&name, "disk", &now)]
        );
    }

    #[test]
    fn what_was_told_is_read_as_it_was_said() {
        for largest in [0, 1, 10 << 20, i64::MAX.unsigned_abs()] {
            let said = room("a", "1", largest);
            let object = capacity("name", "disk", &said, "host");
            assert_eq!(fact(&from_value(object).unwrap()), fact_of(&said));
        }
    }
}
