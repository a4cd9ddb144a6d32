//! Reports of agents, and nodes of which they report nothing.

use crate::{
    programs::free_address,
    world::{SCRIPT, World, tell},
};
use serde_json::json;
use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

/// A driver that reports the missing bytes of one pool, and not of the other.
const LACKING: &str = r#"#!/bin/sh
case "$*" in
init) echo '{"status":"Success","capabilities":{"attach":false,"requiresFSResize":false}}' ;;
capacity*other*) echo '{"status":"Success","capacity":1048576}' ;;
capacity*) echo '{"status":"Success","capacity":1048576,"missing":4096}' ;;
*) echo '{"status":"Not supported"}' && exit 1 ;;
esac
"#;

fn ask(address: SocketAddr, path: &str) -> String {
    // Refused while the program starts.
    let Ok(mut stream) = TcpStream::connect(address) else {
        return String::new();
    };
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said
}

fn says_ready(address: SocketAddr) -> bool {
    ask(address, "/readyz").starts_with("HTTP/1.0 200")
}

/// The missing bytes, by class.
fn missing(address: SocketAddr) -> Vec<String> {
    let said = ask(address, "/metrics");
    let lines = said.lines().filter_map(|line| {
        line.strip_prefix(r#"flexvol_missing_bytes{driver="lab.example/plain","#)
    });
    lines.map(str::to_owned).collect()
}

pub fn not_ready() {
    tell(World::start(), |world| {
        let address = free_address();
        world.node("node");
        let write = "PUT StorageNode/status node";
        let hold = world.server.hold(write);
        world.start_agent("node", &[&format!("--listen={address}")]);
        // The watch begins after the first list of NodeVolumes.
        world.eventually("the agent to see NodeVolumes, and to tell", |world| {
            let all = world.server.requests();
            let asked = |request: &str| all.iter().any(|other| other == request);
            asked("WATCH NodeVolume ") && asked(write)
        })?;
        assert!(!says_ready(address), "nothing was told yet");
        drop(hold);
        world.eventually("the agent to be ready", |_| says_ready(address))
    });
}

pub fn missing_bytes() {
    tell(World::start(), |world| {
        let address = free_address();
        world.node("node");
        world.class("unknown", &json!({"parameters": {"pool": "other"}}));
        world.install_script("node", LACKING);
        let listens = format!("--listen={address}");
        world.start_agent("node", &[&listens, "--heartbeat-seconds=1"]);
        let lacks = [r#"class="plain"} 4096"#.to_owned()];
        world.eventually("the agent to say what is missing", |_| {
            missing(address) == lacks
        })?;
        let mended = LACKING.replace("4096", "0");
        world.install_script("node", &mended);
        let whole = [r#"class="plain"} 0"#.to_owned()];
        world.eventually("nothing to be missing", |_| missing(address) == whole)?;
        world.install_script("node", &LACKING.replace(r#","missing":4096"#, ""));
        world.eventually("nothing to be known", |_| missing(address).is_empty())
    });
}

/// A driver that knows one pool, and of the other one only its name.
const POOLS: &str = r#"#!/bin/sh
case "$*" in
init) echo '{"status":"Success","capabilities":{"attach":false,"requiresFSResize":false}}' ;;
capacity*other*) echo '{"status":"Success","capacity":1,"poolSpace":{"pool":"other"}}' ;;
capacity*) echo '{"status":"Success","capacity":1,"poolSpace":{"pool":"default","size":8,"free":0,"promised":9}}' ;;
*) echo '{"status":"Not supported"}' && exit 1 ;;
esac
"#;

pub fn pool_space() {
    tell(World::start(), |world| {
        let address = free_address();
        world.node("node");
        world.class("other", &json!({"parameters": {"pool": "other"}}));
        // Two classes of one pool.
        world.class("second", &json!({}));
        world.install_script("node", POOLS);
        let listens = format!("--listen={address}");
        world.start_agent("node", &[&listens, "--heartbeat-seconds=1"]);
        let pools = || {
            let said = ask(address, "/metrics");
            let lines = said
                .lines()
                .filter(|line| line.starts_with("flexvol_pool_"));
            let mut lines: Vec<_> = lines.map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let of = |name: &str, number: u64| {
            let labels = r#"driver="lab.example/plain",pool="default""#;
            format!("flexvol_pool_{name}_bytes{{{labels}}} {number}")
        };
        let known = [of("free", 0), of("promised", 9), of("size", 8)];
        world.eventually("the agent to tell of the pool", |_| pools() == known)?;
        let head = ask(address, "/metrics").to_lowercase();
        assert!(
            head.contains("\r\ncontent-type: application/openmetrics-text; version=1.0.0;"),
            "{head}"
        );
        // An earlier driver, or one of somebody else.
        world.install_script("node", LACKING);
        world.eventually("nothing to be known", |_| pools().is_empty())
    });
}

/// Measuring all capacities takes longer than the silence limit.
pub fn slow_capacity() {
    tell(World::start(), |world| {
        world.node("node");
        for number in 0..12 {
            world.class(&format!("c{number}"), &json!({}));
        }
        let storage = world.path("node/storage");
        fs::create_dir_all(&storage).unwrap();
        let script = SCRIPT.replace("/var/lib/lab/plain", &storage);
        world.install_script("node", &script.replace("capacity)", "capacity) sleep 1;"));
        world.start_controller(&["--rate=1000", "--silence-seconds=6"]);
        world.start_agent("node", &["--heartbeat-seconds=1"]);
        world.eventually("the node to be known", |world| {
            !world.get("StorageNode", "", "node")["status"]["drivers"].is_null()
        })?;
        let begun = Instant::now();
        world.eventually("room to be measured again", |_| {
            begun.elapsed() > Duration::from_secs(15)
        })?;
        assert!(!world.log().contains("a node's agent is silent"));
        Ok(())
    });
}
