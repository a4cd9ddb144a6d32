//! What the nodes' agents say of their nodes, and of which nothing is heard.
//!
//! How long an agent has been silent is told by this process's own clock, from when its last heartbeat
//! was seen, as Kubernetes does with its nodes (`pkg/controller/nodelifecycle`): clocks of different
//! hosts are never compared. So a new leader takes an agent for alive until it has waited as long itself.

use crate::objects::{StorageNode, StorageNodeStatus};
use flexvol_sdk::Bytes;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// After how long an agent counts as away: three heartbeats, and what one may be late.
pub const SILENCE: Duration = Duration::from_secs(200);

/// The nodes that have, or had, an agent.
#[derive(Debug)]
pub struct Nodes {
    all: Mutex<BTreeMap<String, Known>>,
    silence: Duration,
}

#[derive(Debug)]
struct Known {
    status: StorageNodeStatus,
    /// When its last heartbeat was seen here; none if Kubernetes missed the node after that.
    heard: Option<Instant>,
    /// Somebody was told that it is silent.
    told: bool,
}

/// Nothing is heard of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Silence {
    /// There never was one.
    Never,
    /// Its last words are of then, by the node's clock.
    Since(String),
}

/// No node can have the volume: in words for the claim's author.
#[derive(Debug, PartialEq, Eq)]
pub struct NoNode(String);

impl Nodes {
    /// Nodes whose agents count as away when they were silent for so long.
    #[must_use]
    pub fn new(silence: Duration) -> Self {
        Nodes {
            all: Mutex::default(),
            silence,
        }
    }

    /// An agent has said something, or its words were read again. Says whether more can be had of the
    /// node than before.
    pub fn put(&self, node: StorageNode) -> bool {
        let name = node.metadata.name.unwrap_or_default();
        let mut now = Known {
            status: node.status,
            heard: Some(Instant::now()),
            told: false,
        };
        let mut all = self.all();
        let Some(before) = all.get(&name) else {
            all.insert(name, now);
            return true;
        };
        if before.status.seen == now.status.seen {
            (now.heard, now.told) = (before.heard, before.told);
        }
        let is_back = before.is_silent(self.silence) && !now.is_silent(self.silence);
        let better = is_back || offers_more(&before.status, &now.status);
        all.insert(name, now);
        better
    }

    /// What an agent said was removed.
    pub fn remove(&self, name: &str) {
        self.all().remove(name);
    }

    /// Kubernetes misses the node: its agent is away until it is heard of again.
    pub fn miss(&self, name: &str) {
        if let Some(known) = self.all().get_mut(name) {
            known.heard = None;
        }
    }

    /// How long nothing was heard of a node's agent, if that is too long.
    pub fn silence(&self, name: &str) -> Option<Silence> {
        match self.all().get(name) {
            None => Some(Silence::Never),
            Some(known) => known
                .is_silent(self.silence)
                .then(|| Silence::since(&known.status)),
        }
    }

    /// The nodes that were not silent when this was asked last.
    pub fn fell_silent(&self) -> Vec<String> {
        let mut all = self.all();
        let fell = all
            .iter_mut()
            .filter(|(_, known)| known.is_silent(self.silence) && !known.told);
        fell.map(|(name, known)| {
            known.told = true;
            name.clone()
        })
        .collect()
    }

    /// The node that the scheduler chose, if its agent can make volumes of the driver.
    ///
    /// # Errors
    /// When it cannot.
    pub fn check(&self, node: &str, driver: &str) -> Result<String, NoNode> {
        match self.all().get(node) {
            None => Err(NoNode(format!(
                "node {node} has no agent of flexvol-controller"
            ))),
            Some(known) if !known.status.drivers.contains_key(driver) => Err(NoNode(format!(
                "driver {driver} does not answer on node {node}"
            ))),
            Some(_) => Ok(node.to_owned()),
        }
    }

    /// The node with the most room for volumes of a class, of those that are heard of.
    ///
    /// # Errors
    /// When none has enough.
    pub fn with_room(&self, driver: &str, class: &str, size: Bytes) -> Result<String, NoNode> {
        let all = self.all();
        let mut able: Vec<_> = all
            .iter()
            .filter(|(_, known)| known.status.drivers.contains_key(driver))
            .collect();
        let silent = able
            .iter()
            .find(|(_, known)| known.is_silent(self.silence))
            .map(|(node, known)| format!("{node} {}", Silence::since(&known.status)));
        able.retain(|(_, known)| !known.is_silent(self.silence));
        // A driver that tells no capacity has to be tried.
        let room = |known: &Known| {
            let told = known.status.capacities.get(class);
            told.map_or(Bytes(u64::MAX), |room| Bytes(*room))
        };
        let best = able.into_iter().max_by_key(|(_, known)| room(known));
        let silent = silent.map_or_else(String::new, |node| {
            format!("; of nodes that do not count, the agent of node {node}")
        });
        match best {
            Some((node, known)) if room(known) >= size => Ok(node.clone()),
            Some((node, known)) => Err(NoNode(format!(
                "no node has room for {size}; the largest volume, {}, could be made on {node}{silent}",
                room(known)
            ))),
            None => Err(NoNode(format!("no node has driver {driver}{silent}"))),
        }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn is_silent(&self, silence: Duration) -> bool {
        self.heard.is_none_or(|heard| heard.elapsed() >= silence)
    }
}

/// Whether there is a driver, or room in a class, that there was not.
fn offers_more(before: &StorageNodeStatus, now: &StorageNodeStatus) -> bool {
    let mut drivers = now.drivers.keys();
    let mut rooms = now.capacities.iter();
    drivers.any(|driver| !before.drivers.contains_key(driver))
        || rooms.any(|(class, room)| before.capacities.get(class).is_none_or(|had| room > had))
}

impl Silence {
    fn since(status: &StorageNodeStatus) -> Self {
        status.seen.clone().map_or(Silence::Never, Silence::Since)
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Silence::Never => f.write_str("was never heard of"),
            Silence::Since(then) => write!(f, "was last heard of at {then}"),
        }
    }
}

impl fmt::Display for NoNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoNode {}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    fn node(name: &str, seen: u32, room: Option<u64>) -> StorageNode {
        let capacities = room.map_or(json!({}), |room| json!({"class": room}));
        let status: Value = json!({
            "drivers": {"a/b": {}}, "capacities": capacities, "seen": format!("12:00:{seen:02}"),
        });
        from_value(json!({
            "apiVersion": StorageNode::api_version(), "kind": "StorageNode",
            "metadata": {"name": name}, "status": status,
        }))
        .unwrap()
    }

    fn nodes(rooms: &[(&str, Option<u64>)]) -> Nodes {
        let nodes = Nodes::new(SILENCE);
        for (name, room) in rooms {
            nodes.put(node(name, 0, *room));
        }
        nodes
    }

    #[test]
    fn the_node_with_the_most_room_is_chosen_and_none_without_enough() {
        let nodes = nodes(&[("one", Some(10)), ("two", Some(30)), ("three", Some(20))]);
        assert_eq!(nodes.with_room("a/b", "class", Bytes(30)).unwrap(), "two");
        let refused = nodes.with_room("a/b", "class", Bytes(31)).unwrap_err();
        let words = refused.to_string();
        assert!(words.contains("no node has room for 31"), "{words}");
        assert!(nodes.with_room("a/c", "class", Bytes(1)).is_err());
        assert!(nodes.check("two", "a/c").is_err());
        assert!(nodes.check("four", "a/b").is_err());
    }

    #[test]
    fn a_driver_that_tells_no_capacity_is_tried() {
        let nodes = nodes(&[("one", None)]);
        assert_eq!(nodes.with_room("a/b", "class", Bytes(1)).unwrap(), "one");
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_is_silent_for_three_heartbeats_is_not_chosen_until_it_is_heard_again() {
        let nodes = nodes(&[("one", Some(10)), ("two", Some(30))]);
        tokio::time::advance(Duration::from_secs(180)).await;
        assert_eq!(nodes.silence("two"), None, "it may be late");
        nodes.put(node("one", 3, Some(10)));
        tokio::time::advance(Duration::from_secs(20)).await;
        assert_eq!(nodes.with_room("a/b", "class", Bytes(5)).unwrap(), "one");
        assert_eq!(nodes.fell_silent(), ["two"]);
        assert!(nodes.fell_silent().is_empty(), "it is told once");
        let silence = nodes.silence("two").unwrap();
        assert_eq!(silence.to_string(), "was last heard of at 12:00:00");
        let refused = nodes.with_room("a/b", "class", Bytes(20)).unwrap_err();
        let words = refused.to_string();
        assert!(
            words.contains("the agent of node two was last heard of at 12:00:00"),
            "{words}"
        );
        // Listing it anew is no sign of life.
        assert!(!nodes.put(node("two", 0, Some(30))));
        assert!(nodes.silence("two").is_some());
        assert!(nodes.put(node("two", 4, Some(30))), "it is back");
        assert_eq!(nodes.silence("two"), None);
        assert_eq!(nodes.with_room("a/b", "class", Bytes(20)).unwrap(), "two");
    }

    #[test]
    fn a_node_that_kubernetes_misses_is_not_chosen_until_its_agent_speaks() {
        let nodes = nodes(&[("one", Some(10)), ("two", Some(30))]);
        nodes.miss("two");
        assert_eq!(nodes.with_room("a/b", "class", Bytes(5)).unwrap(), "one");
        assert_eq!(nodes.fell_silent(), ["two"]);
        nodes.put(node("two", 1, Some(30)));
        assert_eq!(nodes.with_room("a/b", "class", Bytes(5)).unwrap(), "two");
        assert_eq!(nodes.silence("three"), Some(Silence::Never));
    }

    #[test]
    fn only_what_a_node_did_not_offer_before_is_more() {
        let nodes = nodes(&[("one", Some(10))]);
        assert!(!nodes.put(node("one", 1, Some(10))));
        assert!(!nodes.put(node("one", 2, Some(9))));
        assert!(nodes.put(node("one", 3, Some(10))));
        assert!(nodes.put(node("two", 1, None)));
    }
}
