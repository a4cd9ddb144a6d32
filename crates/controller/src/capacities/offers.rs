//! What is said of room, and what has to be written so that it is said.

use crate::{
    names::{HOSTNAME, MANAGED, checksum, hostname},
    nodes::Room,
    objects::StorageNode,
};
use flexvol_sdk::Bytes;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// How many changes are written before it is looked again what they have to be.
const AT_ONCE: usize = 50;

/// What shall be told, by the name of its object.
pub type Wanted = BTreeMap<String, Offer>;

/// What is told, by the name of its object.
pub type Told = BTreeMap<String, Fact>;

/// Room in a class on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub class: String,
    pub node: String,
    pub fact: Fact,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// The UID of what the node's agent says.
    pub of: String,
    /// The label by which pods are sent to the node.
    pub hostname: String,
    pub largest: Bytes,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Change<'a> {
    Tell(&'a Offer),
    Correct(&'a Fact),
    TakeBack,
}

pub fn fact(object: &CSIStorageCapacity) -> Fact {
    let owner = object.metadata.owner_references.iter().flatten().next();
    let topology = object.node_topology.as_ref();
    let host = topology.and_then(|topology| hostname(topology.match_labels.as_ref()));
    let largest = object.capacity.as_ref();
    Fact {
        of: owner.map(|owner| owner.uid.clone()).unwrap_or_default(),
        hostname: host.unwrap_or_default().to_owned(),
        largest: largest
            .and_then(|size| size.0.parse().ok())
            .unwrap_or_default(),
    }
}

/// What has to be written. What is said of a former agent, or by another label, is taken back before it
/// is said anew: neither can be changed, and with the agent's own words Kubernetes deletes it.
pub fn changes<'a>(wanted: &'a Wanted, told: &'a Told) -> BTreeMap<&'a str, Change<'a>> {
    let mut changes = BTreeMap::new();
    for (name, fact) in told {
        let change = match wanted.get(name).map(|offer| &offer.fact) {
            Some(now) if now == fact => continue,
            Some(now) if now.of == fact.of && now.hostname == fact.hostname => Change::Correct(now),
            _ => Change::TakeBack,
        };
        changes.insert(name.as_str(), change);
    }
    let new = wanted.iter().filter(|(name, _)| !told.contains_key(*name));
    changes.extend(new.map(|(name, offer)| (name.as_str(), Change::Tell(offer))));
    changes
}

/// Whose turn it is after the last one's.
pub fn next<'a>(
    changes: BTreeMap<&'a str, Change<'a>>,
    last: &str,
) -> impl Iterator<Item = (&'a str, Change<'a>)> + use<'a> {
    let (before, after): (Vec<_>, Vec<_>) =
        changes.into_iter().partition(|(name, _)| *name <= last);
    after.into_iter().chain(before).take(AT_ONCE)
}

/// Names of classes and nodes together may be longer than a name.
pub fn object_name(class: &str, node: &str) -> String {
    format!("flexvol-{:016x}", checksum(&format!("{class}/{node}")))
}

pub fn offer(class: String, room: Room, hostname: String) -> Offer {
    Offer {
        class,
        node: room.node,
        fact: Fact {
            of: room.uid,
            hostname,
            largest: room.largest,
        },
    }
}

/// The labels of nodes, by which pods are sent to them, without those that several have: a node can change
/// its own, and shall not speak of another's room. One that is the name of a node is of that node.
pub fn unshared(labels: BTreeMap<String, Option<String>>) -> BTreeMap<String, Option<String>> {
    let mut uses = BTreeMap::<_, usize>::new();
    for label in labels.values().flatten() {
        *uses.entry(label.clone()).or_default() += 1;
    }
    let is_own = |node: &str, label: &str| node == label || uses.get(label) == Some(&1);
    let labels = labels.into_iter().map(|(node, label)| {
        let own = label.filter(|label| is_own(&node, label));
        (node, own)
    });
    labels.collect()
}

pub fn capacity(name: &str, offer: &Offer) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIStorageCapacity",
        "metadata": {
            "name": name,
            "labels": {MANAGED: "true"},
            "ownerReferences": [{
                "apiVersion": StorageNode::api_version(),
                "kind": "StorageNode",
                "name": offer.node,
                "uid": offer.fact.of,
            }],
        },
        "storageClassName": offer.class,
        "capacity": offer.fact.largest.to_string(),
        "nodeTopology": {"matchLabels": {HOSTNAME: offer.fact.hostname}},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::from_value;

    fn of(node: &str, uid: &str, hostname: &str, largest: u64) -> Offer {
        let room = Room {
            node: node.to_owned(),
            uid: uid.to_owned(),
            largest: Bytes(largest),
        };
        offer("disk".to_owned(), room, hostname.to_owned())
    }

    fn wanted(offers: &[Offer]) -> Wanted {
        let named = offers
            .iter()
            .map(|offer| (offer.node.clone(), offer.clone()));
        named.collect()
    }

    fn told(offers: &[Offer]) -> Told {
        let named = offers
            .iter()
            .map(|offer| (offer.node.clone(), offer.fact.clone()));
        named.collect()
    }

    #[test]
    fn only_what_differs_is_written() {
        let is = [of("a", "1", "a", 10), of("b", "2", "b", 20)];
        assert!(changes(&wanted(&is), &told(&is)).is_empty());
        let grown = of("b", "2", "b", 30);
        let more = wanted(&[is[0].clone(), grown.clone()]);
        let correct = [("b", Change::Correct(&grown.fact))].into();
        assert_eq!(changes(&more, &told(&is)), correct);
        let one = wanted(&is[..1]);
        let take_back = [("b", Change::TakeBack)].into();
        assert_eq!(changes(&one, &told(&is)), take_back);
        let tell = [("a", Change::Tell(&is[0]))].into();
        assert_eq!(changes(&wanted(&is), &told(&is[1..])), tell);
    }

    #[test]
    fn what_a_former_agent_said_or_another_label_names_is_taken_back_before_it_is_said_anew() {
        let now = of("a", "2", "a", 30);
        let wanted = wanted(std::slice::from_ref(&now));
        for former in [of("a", "1", "a", 30), of("a", "2", "b", 30)] {
            let take_back = [("a", Change::TakeBack)].into();
            assert_eq!(changes(&wanted, &told(&[former])), take_back);
        }
        let tell = [("a", Change::Tell(&now))].into();
        assert_eq!(changes(&wanted, &Told::new()), tell);
    }

    #[test]
    fn whoever_is_written_last_waits_for_all_others() {
        let names: Vec<_> = (0..2 * AT_ONCE).map(|at| format!("{at:03}")).collect();
        let offers: Vec<_> = names.iter().map(|name| of(name, "1", name, 1)).collect();
        let wanted = wanted(&offers);
        let (mut last, mut had) = (String::new(), Vec::new());
        for _ in 0..2 {
            let told = Told::new();
            for (name, _) in next(changes(&wanted, &told), &last.clone()) {
                name.clone_into(&mut last);
                had.push(name.to_owned());
            }
        }
        assert_eq!(had, names);
        let told = Told::new();
        let again = next(changes(&wanted, &told), &last).next().unwrap();
        assert_eq!(again.0, names[0]);
    }

    #[test]
    fn no_node_speaks_of_anothers_room_by_its_label() {
        let labels = [
            ("a", Some("a")),
            ("b", Some("host-b")),
            ("c", Some("host-c")),
            ("d", None),
            ("thief-of-a", Some("a")),
            ("thief-of-c", Some("host-c")),
        ];
        let labels = labels.map(|(node, label)| (node.to_owned(), label.map(str::to_owned)));
        let kept = unshared(labels.into());
        let kept: Vec<_> = kept.values().map(Option::as_deref).collect();
        assert_eq!(kept, [Some("a"), Some("host-b"), None, None, None, None]);
    }

    #[test]
    fn what_was_told_is_read_as_it_was_said() {
        for largest in [0, 1, 10 << 20, i64::MAX.unsigned_abs()] {
            let said = of("a", "1", "host", largest);
            let object = capacity("name", &said);
            assert_eq!(fact(&from_value(object).unwrap()), said.fact);
        }
    }
}
