//! Diff of published capacities: wanted and published state, and the writes between them.

use crate::{
    api::{
        v1alpha1::StorageNode,
        well_known::{HOSTNAME, MANAGED, checksum, hostname},
    },
    placement::NodeCapacity,
};
use flexvol_sdk::Bytes;
use k8s_openapi::{
    api::storage::v1::CSIStorageCapacity, apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use serde_json::{Value, json};
use std::{cmp::Reverse, collections::BTreeMap};

/// Maximum number of writes before the diff is computed again: `AT_ONCE`, or one in `PART` of all capacities if that
/// is more, so that all of them are corrected in minutes.
const AT_ONCE: usize = 50;
const PART: usize = 50;

/// Reciprocal of the tolerated relative error. If others write to the same disk, the capacity changes all the time.
const EXACT: u128 = 100;

/// Wanted capacities, by the names of their objects.
pub type WantedCapacities = BTreeMap<String, WantedCapacity>;

/// Published capacities, by the names of their objects.
pub type PublishedCapacities = BTreeMap<String, PublishedCapacity>;

/// Capacity for a class on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedCapacity {
    pub class: String,
    pub node: String,
    pub content: PublishedCapacity,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedCapacity {
    /// The UID of the owner: the Deployment, or else the StorageNode.
    pub owner_uid: String,
    /// The hostname label by which pods are scheduled to the node.
    pub hostname: String,
    pub largest: Bytes,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Change<'a> {
    Create(&'a WantedCapacity),
    Update(&'a WantedCapacity),
    Delete,
}

pub fn published_capacity(object: &CSIStorageCapacity) -> PublishedCapacity {
    let owner = object.metadata.owner_references.iter().flatten().next();
    let topology = object.node_topology.as_ref();
    let host = topology.and_then(|topology| hostname(topology.match_labels.as_ref()));
    let largest = object.capacity.as_ref();
    PublishedCapacity {
        owner_uid: owner.map(|owner| owner.uid.clone()).unwrap_or_default(),
        hostname: host.unwrap_or_default().to_owned(),
        largest: largest
            .and_then(|size| size.0.parse().ok())
            .unwrap_or_default(),
    }
}

/// Returns the necessary writes. `nodeTopology` is immutable: an object with another label is deleted and created
/// again. An object with another owner is updated in place, so that pods can be scheduled all the while.
pub fn changes<'a>(
    wanted: &'a WantedCapacities,
    published: &'a PublishedCapacities,
) -> BTreeMap<&'a str, Change<'a>> {
    let mut changes = BTreeMap::new();
    for (name, before) in published {
        let change = match wanted.get(name) {
            Some(now) if now.content.hostname == before.hostname => {
                if now.content.owner_uid == before.owner_uid
                    && is_exact(now.content.largest, before.largest)
                {
                    continue;
                }
                Change::Update(now)
            }
            _ => Change::Delete,
        };
        changes.insert(name.as_str(), change);
    }
    let new = wanted
        .iter()
        .filter(|(name, _)| !published.contains_key(*name));
    changes.extend(new.map(|(name, wanted)| (name.as_str(), Change::Create(wanted))));
    changes
}

fn is_exact(is: Bytes, told: Bytes) -> bool {
    let wrong = u128::from(is.0.abs_diff(told.0));
    wrong == 0 || wrong * EXACT < u128::from(told.0)
}

/// The error of a published capacity as a factor. Objects that have to be created or deleted get the maximum.
fn relative_error(name: &str, change: &Change<'_>, published: &PublishedCapacities) -> u64 {
    let before = published.get(name).map(|before| before.largest.0);
    match (change, before) {
        (Change::Update(now), Some(before)) => {
            let now = now.content.largest.0;
            let (small, large) = (now.min(before), now.max(before));
            let times = u128::from(large) * EXACT / u128::from(small.max(1));
            u64::try_from(times).unwrap_or(u64::MAX)
        }
        _ => u64::MAX,
    }
}

/// Selects the next writes. One half has the largest errors, and the other half follows the `last` name round robin, so
/// that repeated failures starve no other object. `all` is the number of wanted capacities.
pub fn next_changes<'a>(
    changes: BTreeMap<&'a str, Change<'a>>,
    published: &PublishedCapacities,
    last: &str,
    all: usize,
) -> Vec<(&'a str, Change<'a>)> {
    let most = AT_ONCE.max(all / PART);
    let (before, after): (Vec<_>, Vec<_>) =
        changes.into_iter().partition(|(name, _)| *name <= last);
    let mut turns: Vec<_> = after.into_iter().chain(before).enumerate().collect();
    turns.sort_by_key(|(turn, (name, change))| {
        (Reverse(relative_error(name, change, published)), *turn)
    });
    let mut rest = turns.split_off(turns.len().min(most / 2));
    rest.sort_by_key(|(turn, _)| *turn);
    let chosen = turns.into_iter().chain(rest).take(most);
    chosen.map(|(_, change)| change).collect()
}

/// The object's name: a checksum, because the names of class and node together may be too long.
pub fn object_name(class: &str, node: &str) -> String {
    format!("flexvol-{:016x}", checksum(&format!("{class}/{node}")))
}

/// Builds the wanted capacity, with the UID of its owner.
pub fn wanted_capacity(
    class: String,
    room: NodeCapacity,
    hostname: String,
    owner: Option<&OwnerReference>,
) -> WantedCapacity {
    WantedCapacity {
        class,
        node: room.node,
        content: PublishedCapacity {
            owner_uid: owner.map_or(room.uid, |owner| owner.uid.clone()),
            hostname,
            largest: room.largest,
        },
    }
}

/// Removes hostname labels that several nodes have: a node may change its own label, but must not speak for another
/// node. A label that is a node's name belongs to that node.
pub fn unshared_labels(
    labels: BTreeMap<String, Option<String>>,
) -> BTreeMap<String, Option<String>> {
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

/// The owner reference: the Deployment, or else the StorageNode.
pub fn owner(wanted: &WantedCapacity, installed: Option<&OwnerReference>) -> OwnerReference {
    let of_node = || OwnerReference {
        api_version: StorageNode::api_version(),
        kind: "StorageNode".to_owned(),
        name: wanted.node.clone(),
        uid: wanted.content.owner_uid.clone(),
        ..OwnerReference::default()
    };
    installed.cloned().unwrap_or_else(of_node)
}

pub fn manifest(name: &str, wanted: &WantedCapacity, installed: Option<&OwnerReference>) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIStorageCapacity",
        "metadata": {
            "name": name,
            "labels": {MANAGED: "true"},
            "ownerReferences": [owner(wanted, installed)],
        },
        "storageClassName": wanted.class,
        "capacity": wanted.content.largest.to_string(),
        "nodeTopology": {"matchLabels": {HOSTNAME: wanted.content.hostname}},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::from_value;

    fn of(node: &str, uid: &str, hostname: &str, largest: u64) -> WantedCapacity {
        let room = NodeCapacity {
            node: node.to_owned(),
            uid: uid.to_owned(),
            largest: Bytes(largest),
        };
        wanted_capacity("disk".to_owned(), room, hostname.to_owned(), None)
    }

    fn wanted(all: &[WantedCapacity]) -> WantedCapacities {
        let named = all
            .iter()
            .map(|wanted| (wanted.node.clone(), wanted.clone()));
        named.collect()
    }

    fn published(all: &[WantedCapacity]) -> PublishedCapacities {
        let named = all
            .iter()
            .map(|wanted| (wanted.node.clone(), wanted.content.clone()));
        named.collect()
    }

    #[test]
    fn only_what_differs_is_written() {
        let is = [of("a", "1", "a", 10), of("b", "2", "b", 20)];
        assert!(changes(&wanted(&is), &published(&is)).is_empty());
        let grown = of("b", "2", "b", 30);
        let more = wanted(&[is[0].clone(), grown.clone()]);
        let update = [("b", Change::Update(&grown))].into();
        assert_eq!(changes(&more, &published(&is)), update);
        let one = wanted(&is[..1]);
        let delete = [("b", Change::Delete)].into();
        assert_eq!(changes(&one, &published(&is)), delete);
        let create = [("a", Change::Create(&is[0]))].into();
        assert_eq!(changes(&wanted(&is), &published(&is[1..])), create);
    }

    #[test]
    fn what_another_label_names_is_taken_back_and_what_another_owner_has_stays_and_is_given_to_this_one()
     {
        let now = of("a", "2", "a", 30);
        let wanted = wanted(std::slice::from_ref(&now));
        let delete = [("a", Change::Delete)].into();
        assert_eq!(
            changes(&wanted, &published(&[of("a", "2", "b", 30)])),
            delete
        );
        let update = [("a", Change::Update(&now))].into();
        assert_eq!(
            changes(&wanted, &published(&[of("a", "1", "a", 30)])),
            update
        );
        let create = [("a", Change::Create(&now))].into();
        assert_eq!(changes(&wanted, &PublishedCapacities::new()), create);
    }

    #[test]
    fn whoever_is_written_last_waits_for_all_others() {
        let names: Vec<_> = (0..2 * AT_ONCE).map(|at| format!("{at:03}")).collect();
        let all: Vec<_> = names.iter().map(|name| of(name, "1", name, 1)).collect();
        let wanted = wanted(&all);
        let (mut last, mut had) = (String::new(), Vec::new());
        for _ in 0..2 {
            let published = PublishedCapacities::new();
            for (name, _) in next_changes(
                changes(&wanted, &published),
                &published,
                &last.clone(),
                2 * AT_ONCE,
            ) {
                name.clone_into(&mut last);
                had.push(name.to_owned());
            }
        }
        assert_eq!(had, names);
        let published = PublishedCapacities::new();
        let again = next_changes(changes(&wanted, &published), &published, &last, 2 * AT_ONCE);
        assert_eq!(again[0].0, names[0]);
    }

    #[test]
    fn what_is_wrong_by_less_than_a_hundredth_is_left() {
        let differs = |was: u64, is: u64| {
            let (was, is) = (of("a", "1", "a", was), of("a", "1", "a", is));
            !changes(&wanted(&[is]), &published(&[was])).is_empty()
        };
        assert!(!differs(1000, 1009) && !differs(1000, 991) && !differs(0, 0));
        assert!(differs(1000, 1010) && differs(1000, 990));
        assert!(
            differs(0, 1) && differs(1, 0),
            "there is room, or there is none"
        );
        assert!(!differs(
            i64::MAX.unsigned_abs(),
            i64::MAX.unsigned_abs() - 4096
        ));
    }

    #[test]
    fn what_is_most_wrong_is_corrected_first_and_nobody_waits_for_ever() {
        let names: Vec<_> = (0..10_000).map(|at| format!("{at:05}")).collect();
        // Errors grow with the names, and the last ones are not published at all.
        let sized = |size: &dyn Fn(u64) -> u64| -> Vec<_> {
            let numbered = (0..).zip(&names);
            numbered
                .map(|(at, name)| of(name, "1", name, size(at)))
                .collect()
        };
        let is = wanted(&sized(&|_| 1 << 40));
        let was = published(&sized(&|at| (1 << 40) / (2 + at))[..9_990]);
        let chosen = next_changes(changes(&is, &was), &was, "", is.len());
        assert_eq!(chosen.len(), 200, "a fiftieth");
        let first: Vec<_> = chosen[..100].iter().map(|(name, _)| *name).collect();
        assert!(
            names[9_990..]
                .iter()
                .all(|name| first.contains(&name.as_str()))
        );
        assert!(
            first.iter().all(|name| **name >= *names[9_900]),
            "{first:?}"
        );
        let rest: Vec<_> = chosen[100..].iter().map(|(name, _)| *name).collect();
        assert_eq!(rest, names[..100]);
        // The largest errors fail each time, and the others still have their turns.
        let mut last = String::new();
        let mut had = std::collections::BTreeSet::new();
        for _ in 0..101 {
            for (name, _) in next_changes(changes(&is, &was), &was, &last.clone(), is.len()) {
                had.insert(name.to_owned());
                name.clone_into(&mut last);
            }
        }
        assert_eq!(had.len(), names.len());
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
        let kept = unshared_labels(labels.into());
        let kept: Vec<_> = kept.values().map(Option::as_deref).collect();
        assert_eq!(kept, [Some("a"), Some("host-b"), None, None, None, None]);
    }

    #[test]
    fn what_was_told_is_read_as_it_was_said() {
        for largest in [0, 1, 10 << 20, i64::MAX.unsigned_abs()] {
            let said = of("a", "1", "host", largest);
            let object = manifest("name", &said, None);
            assert_eq!(
                published_capacity(&from_value(object).unwrap()),
                said.content
            );
        }
        let owner = OwnerReference {
            uid: "2".to_owned(),
            ..OwnerReference::default()
        };
        let room = NodeCapacity {
            node: "a".to_owned(),
            uid: "1".to_owned(),
            largest: Bytes(1),
        };
        let said = wanted_capacity("disk".to_owned(), room, "host".to_owned(), Some(&owner));
        assert_eq!(said.content.owner_uid, "2");
        let object = manifest("name", &said, Some(&owner));
        assert_eq!(
            published_capacity(&from_value(object).unwrap()),
            said.content
        );
    }
}
