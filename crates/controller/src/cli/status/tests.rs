use super::*;
use crate::client::connect_person;
use flexvol_apiserver::{Key, Server};
use serde_json::{Value, from_value, json};

fn node_volume(wanted: &str, published: bool, status: Value) -> NodeVolume {
    from_value(json!({
        "apiVersion": NodeVolume::api_version(),
        "kind": "NodeVolume",
        "metadata": {"name": "pvc-1"},
        "spec": {
            "driver": "a/b", "node": "n", "state": wanted, "size": 2u64 << 30,
            "published": published,
            "claim": {"namespace": "ns", "name": "data", "uid": "1"},
        },
        "status": status,
    }))
    .unwrap()
}

const NOW: &str = "2026-11-22T12:00:00Z";

fn seen(when: Option<&str>) -> StorageNodeStatus {
    StorageNodeStatus {
        last_heartbeat_time: when.map(str::to_owned),
        ..StorageNodeStatus::default()
    }
}

fn heard(node_volume: &NodeVolume) -> Row {
    row(node_volume, Some(&seen(Some(NOW))), NOW.parse().unwrap())
}

#[test]
fn a_volume_that_waits_for_a_silent_node_is_shown_with_when_it_was_heard_of() {
    let now = NOW.parse().unwrap();
    let small = json!({"state": "Present", "size": 1u64 << 30});
    let grows = node_volume("Present", true, small);
    let why = |node_volume: &NodeVolume, when| row(node_volume, Some(&seen(when)), now).why;
    assert_eq!(why(&grows, Some("2026-11-22T11:57:00Z")), "");
    let then = "2026-11-22T11:56:00Z";
    assert_eq!(
        why(&grows, Some(then)),
        format!("the agent of node n was last heard of at {then}")
    );
    assert!(why(&grows, None).ends_with("was never heard of"));
    assert_eq!(
        why(&grows, Some("2026-11-22T12:01:00Z")),
        "",
        "its clock is fast"
    );
    let full = json!({"state": "Present", "size": 2u64 << 30});
    let settled = node_volume("Present", true, full);
    assert_eq!(why(&settled, Some(then)), "");
}

#[test]
fn a_volume_that_waits_is_shown_with_what_it_waits_for() {
    let problem = json!({"class": "exhausted", "message": "the pool is full"});
    for (node_volume, state) in [
        (node_volume("Present", false, Value::Null), "being made"),
        (
            node_volume(
                "Present",
                true,
                json!({"state": "Present", "size": 2u64 << 30}),
            ),
            SETTLED,
        ),
        (
            node_volume(
                "Present",
                true,
                json!({"state": "Present", "size": 1u64 << 30, "error": problem}),
            ),
            "growing",
        ),
        (
            node_volume("Absent", true, json!({"state": "Present"})),
            "being deleted",
        ),
    ] {
        assert_eq!(heard(&node_volume).state, state);
    }
}

#[test]
fn a_recovery_that_has_stopped_early_is_shown_with_how_to_finish_it() {
    let full = json!({"state": "Present", "size": 2u64 << 30});
    let mut row = heard(&node_volume("Present", true, full));
    let mut volumes = Volumes::default();
    volumes.correct(&mut row);
    assert_eq!(row.state, SETTLED);
    let command = "finish it by: flexvol-controller recover data --namespace ns";
    volumes
        .recovering
        .insert("pvc-1".to_owned(), command.to_owned());
    volumes.correct(&mut row);
    assert_eq!(row.state, "being recovered");
    assert_eq!(row.why, command);
}

#[test]
fn columns_are_as_wide_as_their_widest_cell() {
    let full = json!({"class": "exhausted", "message": "the pool\nis\u{1b}full"});
    let node_volume = node_volume(
        "Present",
        true,
        json!({"state": "Present", "size": 1u64 << 30, "error": full}),
    );
    assert_eq!(
        output::table(&[heard(&node_volume)], 3),
        "CLAIM    VOLUME  NODE  STATE    REQUESTED  HAS  WHY\n\
         ns/data  pvc-1   n     growing  2Gi        1Gi  the pool is full\n\
         3 volumes are settled\n"
    );
}

/// Stores a NodeVolume of a published volume of 2 GiB.
fn store(server: &Server, name: &str, status: &Value) {
    let mut node_volume = serde_json::to_value(node_volume("Present", true, Value::Null)).unwrap();
    node_volume["metadata"]["name"] = name.into();
    let key = Key::new("NodeVolume", "", name);
    server.store().create(&key, node_volume).unwrap();
    server.store().merge_status(&key, status).unwrap();
}

/// The lines that a person is shown.
fn shown(server: &Server) -> Vec<String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), server.kubeconfig()).unwrap();
    let shown = async {
        let client = connect_person(Some(file.path())).await.unwrap();
        show(&client, &StatusOptions::default()).await.unwrap()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let table = runtime.unwrap().block_on(shown);
    table.lines().map(str::to_owned).collect()
}

#[test]
fn storage_whose_volume_was_removed_by_force_is_not_settled() {
    let server = Server::start().unwrap();
    for name in ["pvc-1", "pvc-2"] {
        store(
            &server,
            name,
            &json!({"state": "Present", "size": 2u64 << 30}),
        );
    }
    // The volume has lost its labels.
    let volume = json!({"metadata": {"name": "pvc-2"}, "spec": {"capacity": {}}});
    let key = Key::new("PersistentVolume", "", "pvc-2");
    server.store().create(&key, volume).unwrap();
    let lines = shown(&server);
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[1].contains("pvc-1") && lines[1].contains("without a volume"));
    assert_eq!(lines[2], "1 volumes are settled");
}

#[test]
fn an_object_that_is_not_understood_is_named_and_hides_no_other() {
    let server = Server::start().unwrap();
    let key = Key::new("NodeVolume", "", "pvc-0");
    let odd = json!({"metadata": {"name": "pvc-0"}, "spec": {"driver": "a/b"}});
    server.store().create(&key, odd).unwrap();
    store(
        &server,
        "pvc-1",
        &json!({"state": "Present", "size": 1u64 << 30}),
    );
    let key = Key::new("StorageNode", "", "n");
    let node = json!({"metadata": {"name": "n"}});
    server.store().create(&key, node).unwrap();
    let odd = json!({"drivers": "many"});
    server.store().merge_status(&key, &odd).unwrap();
    let lines = shown(&server);
    assert_eq!(lines.len(), 5, "{lines:?}");
    let columns = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(columns(&lines[1])[..3], ["-", "-", "n"]);
    assert!(lines[1].ends_with("kubectl get storagenode n -o yaml"));
    assert_eq!(columns(&lines[2])[..3], ["-", "pvc-0", "-"]);
    assert!(lines[2].contains("not understood") && lines[2].contains("nodevolume pvc-0"));
    // Nothing is known of the agent, so nothing is said of it.
    assert_eq!(
        columns(&lines[3]),
        ["ns/data", "pvc-1", "n", "growing", "2Gi", "1Gi"]
    );
}
