//! Metrics of claims and nodes, for alerts.

use crate::{
    programs::free_address,
    world::{World, tell},
};
use flexvol_apiserver::Key;
use serde_json::json;
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

const HEARTBEAT: &str = "--heartbeat-seconds=1";
const SILENCE: &str = "--silence-seconds=4";

/// Reads a program's metric.
fn count(address: SocketAddr, name: &str) -> Option<u64> {
    let mut stream = TcpStream::connect(address).ok()?;
    write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    let mut lines = said.lines().filter_map(|line| line.strip_prefix(name));
    lines.next()?.trim().parse().ok()
}

/// A claim waits while its node is cordoned, and gets its volume within a minute after that, without any heartbeat.
pub fn uncordoned() {
    tell(World::start(), |world| {
        let address = free_address();
        world.node("node");
        let node = Key::new("Node", "", "node");
        let cordoned = |is: bool| json!({"spec": {"unschedulable": is}});
        world.server.store().merge(&node, &cordoned(true)).unwrap();
        world.start_controller(&["--rate=1000", &format!("--listen={address}")]);
        world.start_agent("node", &[]);
        world.claim("data", "plain");
        world.eventually("people to be told", |world| world.told("is cordoned"))?;
        let waiting = || count(address, "flexvol_claims_waiting");
        world.eventually("the claim to be counted", |_| waiting() == Some(1))?;
        world.server.store().merge(&node, &cordoned(false)).unwrap();
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        world.eventually("no claim to be counted", |_| waiting() == Some(0))
    });
}

/// The scheduler selects a node whose agent is dead, for which the claim waits, and one that never had an agent,
/// which is rescheduled.
pub fn chosen_and_dead() {
    tell(World::start(), |world| {
        let address = free_address();
        for node in ["node", "bare"] {
            world.node(node);
        }
        let late = json!({"volumeBindingMode": "WaitForFirstConsumer"});
        world.class("late", &late);
        let listens = format!("--listen={address}");
        world.start_controller(&["--rate=1000", SILENCE, &listens]);
        world.start_agent("node", &[HEARTBEAT]);
        world.eventually("the node to be known", |world| {
            !world.get("StorageNode", "", "node")["status"]["drivers"].is_null()
        })?;
        let silent = || count(address, "flexvol_nodes_silent");
        world.eventually("no node to be silent", |_| silent() == Some(0))?;
        world.kill("node");
        world.eventually("the node to be silent", |_| silent() == Some(1))?;
        for (claim, node) in [("dead", "node"), ("moved", "bare")] {
            world.claim(claim, "late");
            world.choose_node(claim, node);
        }
        world.eventually("people to be told", |world| world.told("start its agent"))?;
        world.wait_rescheduling("moved")?;
        let waiting = || count(address, "flexvol_claims_waiting");
        world.eventually("both claims to be counted", |_| waiting() == Some(2))?;
        for claim in ["dead", "moved"] {
            world.delete_claim(claim);
        }
        world.eventually("no claim to be counted", |_| waiting() == Some(0))
    });
}
