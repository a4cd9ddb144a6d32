//! Nodes that cannot say what is on them.

use crate::world::{World, tell};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
};

fn says_ready(address: SocketAddr) -> bool {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said.starts_with("HTTP/1.0 200")
}

pub fn not_ready() {
    tell(World::start(), |world| {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        world.node("node");
        let write = "PUT StorageNode/status node";
        let hold = world.server.hold(write);
        world.start_agent("node", &[&format!("--listen={address}")]);
        // The watch begins when all orders were seen.
        world.eventually("the agent to see orders, and to tell", |world| {
            let all = world.server.requests();
            let asked = |request: &str| all.iter().any(|other| other == request);
            asked("WATCH NodeVolume ") && asked(write)
        })?;
        assert!(!says_ready(address), "nothing was told yet");
        drop(hold);
        world.eventually("the agent to be ready", |_| says_ready(address))
    });
}
