//! What the nodes' agents say of their nodes, and of which nothing is heard.
//!
//! How long an agent has been silent is told by this process's own clock, from when its last heartbeat
//! was seen, as Kubernetes does with its nodes (`pkg/controller/nodelifecycle`): clocks of different
//! hosts are never compared. So a new leader takes an agent for alive until it has waited as long itself.

mod full;
mod room;
mod silence;

pub use room::Room;
pub use silence::Silence;

use crate::objects::{StorageNode, StorageNodeStatus};
use flexvol_sdk::Bytes;
use full::Full;
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
    uid: String,
    status: StorageNodeStatus,
    /// When its last heartbeat was seen here; none if Kubernetes missed the node after that.
    heard: Option<Instant>,
    /// Somebody was told that it is silent.
    told: bool,
    /// What its driver had no room for, by class.
    full: BTreeMap<String, Full>,
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
            uid: node.metadata.uid.unwrap_or_default(),
            status: node.status,
            heard: Some(Instant::now()),
            told: false,
            full: BTreeMap::new(),
        };
        let mut all = self.all();
        let Some(before) = all.get_mut(&name) else {
            all.insert(name, now);
            return true;
        };
        if before.status.seen == now.status.seen {
            (now.heard, now.told) = (before.heard, before.told);
        }
        let is_back = before.is_silent(self.silence) && !now.is_silent(self.silence);
        let better = is_back || offers_more(&before.status, &now.status);
        now.full = std::mem::take(&mut before.full);
        now.full.retain(|class, _| {
            let (had, has) = (&before.status.capacities, &now.status.capacities);
            // What is said for the first time is no room that was made.
            let made = had
                .get(class)
                .zip(has.get(class))
                .is_some_and(|(had, has)| has > had);
            !made
        });
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

    /// The nodes of whose agents nothing is heard, and when each said something last, by its clock.
    pub fn silent(&self) -> BTreeMap<String, Option<String>> {
        let all = self.all();
        let silent = all
            .iter()
            .filter(|(_, known)| known.is_silent(self.silence));
        let silent = silent.map(|(name, known)| (name.clone(), known.status.seen.clone()));
        silent.collect()
    }

    /// After how long an agent counts as away.
    pub fn longest_silence(&self) -> Duration {
        self.silence
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
        let why = match self.all().get(node) {
            None => Some(format!("node {node} has no agent of flexvol-controller")),
            Some(known) => known.lacks_driver(node, driver),
        };
        why.map_or_else(|| Ok(node.to_owned()), |why| Err(NoNode(why)))
    }

    /// A node's driver had no room for a volume of this size.
    pub fn had_no_room(&self, node: &str, class: &str, size: Bytes) {
        let mut all = self.all();
        let Some(known) = all.get_mut(node) else {
            return;
        };
        let before = known.full.remove(class);
        known.full.insert(class.to_owned(), Full::now(size, before));
    }

    /// A node's driver has made a volume of this size.
    pub fn had_room(&self, node: &str, class: &str, size: Bytes) {
        if let Some(known) = self.all().get_mut(node) {
            known
                .full
                .retain(|of, full| of != class || !full.forbids(size));
        }
    }

    /// Why the node that the scheduler chose cannot have a volume, if it is heard of and says so.
    pub fn lacks(&self, node: &str, driver: &str, class: &str, size: Bytes) -> Option<String> {
        let all = self.all();
        let known = all.get(node)?;
        let room = known.room(class);
        let lacks_room = || {
            (room < size).then(|| {
                format!("node {node} has no room for {size}; the largest volume there has {room}")
            })
        };
        known.lacks_driver(node, driver).or_else(lacks_room)
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
        let best = able.into_iter().max_by_key(|(_, known)| known.room(class));
        let silent = silent.map_or_else(String::new, |node| {
            format!("; of nodes that do not count, the agent of node {node}")
        });
        match best.map(|(node, known)| (node, known.room(class))) {
            Some((node, room)) if room >= size => Ok(node.clone()),
            Some((node, room)) => Err(NoNode(format!(
                "no node has room for {size}; the largest volume, {room}, could be made on {node}{silent}",
            ))),
            None => Err(NoNode(format!("no node has driver {driver}{silent}"))),
        }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn lacks_driver(&self, node: &str, driver: &str) -> Option<String> {
        let answers = self.status.drivers.contains_key(driver);
        (!answers).then(|| format!("driver {driver} does not answer on node {node}"))
    }

    /// The largest volume of a class that can be made: as the driver says, and less than what it had no
    /// room for lately. One that does not say has to be tried.
    fn room(&self, class: &str) -> Bytes {
        let told = self.status.capacities.get(class);
        let told = told.map_or(Bytes(u64::MAX), |room| Bytes(*room));
        let largest = self.full.get(class).and_then(Full::largest);
        largest.map_or(told, |largest| told.min(largest))
    }

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
        let lacks = |node, driver, size| nodes.lacks(node, driver, "class", Bytes(size));
        assert_eq!(lacks("two", "a/b", 30), None);
        assert!(lacks("two", "a/b", 31).unwrap().contains("no room for 31"));
        assert!(lacks("two", "a/c", 1).unwrap().contains("does not answer"));
        assert_eq!(lacks("four", "a/b", 1), None, "nothing is heard of it");
    }

    #[test]
    fn a_driver_that_tells_no_capacity_is_tried() {
        let nodes = nodes(&[("one", None)]);
        assert_eq!(nodes.with_room("a/b", "class", Bytes(1)).unwrap(), "one");
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_had_no_room_is_not_asked_again_for_ever_longer_or_until_it_has_more() {
        let nodes = nodes(&[("one", None), ("two", Some(5))]);
        let room = |size| nodes.with_room("a/b", "class", Bytes(size));
        for minutes in [1, 2, 4] {
            assert_eq!(room(7).unwrap(), "one");
            nodes.had_no_room("one", "class", Bytes(7));
            assert!(room(7).is_err());
            assert_eq!(room(6).unwrap(), "one", "less may be had");
            assert_eq!(nodes.lacks("one", "a/b", "other", Bytes(7)), None);
            let almost = Duration::from_secs(60 * minutes - 1);
            tokio::time::advance(almost).await;
            assert!(room(7).is_err());
            nodes.put(node("one", u32::try_from(minutes).unwrap(), None));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        nodes.put(node("two", 1, Some(5)));
        nodes.had_no_room("two", "class", Bytes(5));
        assert!(nodes.lacks("two", "a/b", "class", Bytes(5)).is_some());
        nodes.put(node("two", 2, Some(6)));
        assert_eq!(nodes.lacks("two", "a/b", "class", Bytes(5)), None);
        nodes.had_no_room("two", "class", Bytes(5));
        nodes.had_room("two", "other", Bytes(5));
        nodes.had_room("two", "class", Bytes(4));
        assert!(nodes.lacks("two", "a/b", "class", Bytes(5)).is_some());
        nodes.had_room("two", "class", Bytes(5));
        assert_eq!(nodes.lacks("two", "a/b", "class", Bytes(5)), None);
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
        let seen = Some("12:00:00".to_owned());
        assert_eq!(nodes.silent(), [("two".to_owned(), seen)].into());
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
