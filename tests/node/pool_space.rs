//! What the `capacity` reply says of a pool, for people who watch how full pools get.

use crate::{
    lvm,
    node::{Backend, Node, size_of_filesystem},
    story::stories,
};
use flexvol_testing::{Points, request};
use serde_json::{Value, json};

stories! {
    STORIES:
    "capacity says how large the pool is, what it can give and what it has promised",
        [loop sparse_loop xfs ext4 btrfs lvm thin_lvm] => space;
    "capacity leaves out what a driver does not know of its pool",
        [hello_block hello_directory] => unknown;
}

/// The reply of `capacity` for the driver's only pool.
fn capacity(node: &Node) -> Value {
    let reply = node.driver.call(&["capacity", "{}"]).success();
    Value::Object(reply.object().unwrap())
}

/// The size of the pool, by other programs.
fn size(node: &Node) -> u64 {
    let asked = |verb: &str, field: &str, of: &str| {
        let options = ["--noheadings", "--nosuffix", "--units", "b", "-o"];
        let said = lvm::lvm(&[&[verb], &options[..], &[field, of]].concat());
        said.trim().parse().unwrap()
    };
    match node.backend {
        Backend::Lvm => asked("vgs", "vg_size", lvm::GROUP),
        Backend::ThinLvm => asked("lvs", "lv_size", &format!("{}/tp0", lvm::GROUP)),
        _ => size_of_filesystem(&node.sandbox.pool()),
    }
}

fn space(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    let pool = |promised: u64| {
        let said = capacity(&node);
        let expected = json!({
            "pool": "default",
            "size": size(&node),
            "free": said["capacity"],
            "promised": promised,
        });
        assert_eq!(said["poolspace"], expected, "{said}");
        said
    };
    let empty = pool(0);
    let volume = node.volume("pv");
    pool(node.size());
    points.add(2);
    // The largest volume of a class may be smaller than what the pool has for all.
    let limited = node.install(&format!("largest = \"{}\"", node.size()));
    let said = limited.call(&["capacity", "{}"]).success();
    let said = said.object().unwrap();
    assert_eq!(said["capacity"], node.size());
    assert!(
        said["poolspace"]["free"].as_u64() > Some(node.size()),
        "{said:?}"
    );
    points.add(1);
    node.install("");
    node.delete(&volume).success();
    let again = pool(0);
    assert_eq!(again["poolspace"]["size"], empty["poolspace"]["size"]);
    points.add(1);
}

fn unknown(backend: Backend, points: &Points) {
    let node = Node::new(backend);
    let made = node
        .driver
        .call(&["provision", &request("pv", node.size())]);
    made.success();
    let said = capacity(&node);
    assert_eq!(said["poolspace"], json!({"pool": "default"}), "{said}");
    assert!(said.get("missing").is_none(), "{said}");
    points.add(1);
}
