//! `flexvol-controller status`: volumes and claims that wait, and for what.

mod claims;

use crate::{
    api::{
        v1alpha1::{NodeVolume, NodeVolumeStatus, StorageNode, StorageNodeStatus, StorageState},
        well_known::MANAGED,
    },
    cli::recover,
    client::paginate,
    k8s::volume::handed_on,
    placement::{LastHeartbeat, SILENCE},
};
use anyhow::{Context, Result};
use claims::Claims;
use flexvol_sdk::Bytes;
use k8s_openapi::{api::core::v1::PersistentVolume, jiff::Timestamp};
use kube::{Api, Client, ResourceExt, api::ListParams};
use std::collections::{HashMap, HashSet};

/// Returns the table of all volumes, or of those that wait.
///
/// # Errors
/// When a list fails.
pub async fn table(client: &Client, all: bool) -> Result<String> {
    let nodes: Api<StorageNode> = Api::all(client.clone());
    let nodes = nodes
        .list(&ListParams::default())
        .await
        .context("list the nodes' agents")?;
    let heard: HashMap<_, _> = nodes
        .iter()
        .map(|node| (node.name_any(), &node.status))
        .collect();
    let unheard = StorageNodeStatus::default();
    let volumes = Volumes::list(client).await?;
    let mut claims = Claims::list(client, &nodes.items).await?;
    let now = Timestamp::now();
    let node_volumes: Api<NodeVolume> = Api::all(client.clone());
    let (mut rows, mut settled, mut doubtful) = (Vec::new(), 0, Vec::new());
    let pages = ListParams::default().limit(paginate::PAGE_SIZE);
    let listed = paginate::each(&node_volumes, pages, |node_volume| {
        let node = heard.get(&node_volume.spec.node).copied();
        let mut row = row(node_volume, node.unwrap_or(&unheard), now);
        claims.correct(&mut row);
        volumes.correct(&mut row);
        if row.state == SETTLED && !volumes.there.contains(&row.volume) {
            doubtful.push(row);
            return;
        }
        if row.state == SETTLED {
            settled += 1;
        }
        if all || row.state != SETTLED {
            rows.push(row);
        }
    });
    listed.await.context("list the NodeVolumes")?;
    // The volume was created after the list, or has lost its label, or is gone.
    let of_name: Api<PersistentVolume> = Api::all(client.clone());
    for mut row in doubtful {
        let volume = of_name.get_opt(&row.volume).await;
        match volume.context("read a persistent volume")? {
            Some(_) => settled += 1,
            None => row.lacks_volume(),
        }
        if all || row.state != SETTLED {
            rows.push(row);
        }
    }
    rows.extend(claims.without_node_volume());
    Ok(format(&rows, settled))
}

/// State from persistent volumes that NodeVolumes lack.
#[derive(Debug, Default)]
struct Volumes {
    /// The names of all volumes.
    there: HashSet<String>,
    /// The current claims of volumes that outlived their original claims.
    handed_on: HashMap<String, String>,
    /// How to finish recoveries that may have been interrupted.
    recovering: HashMap<String, String>,
}

impl Volumes {
    async fn list(client: &Client) -> Result<Self> {
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        let pages = ListParams::default()
            .labels(&format!("{MANAGED}=true"))
            .limit(paginate::PAGE_SIZE);
        let mut all = Volumes::default();
        let listed = paginate::each(&volumes, pages, |volume| {
            all.there.insert(volume.name_any());
            if let Some((namespace, name)) = handed_on(volume) {
                let claim = format!("{namespace}/{name}");
                all.handed_on.insert(volume.name_any(), claim);
            }
            if let Some(why) = recover::to_finish(volume) {
                all.recovering.insert(volume.name_any(), why);
            }
        });
        listed.await.context("list the persistent volumes")?;
        Ok(all)
    }

    fn correct(&self, row: &mut Row) {
        if let Some(claim) = self.handed_on.get(&row.volume) {
            row.claim.clone_from(claim);
        }
        if let Some(why) = self.recovering.get(&row.volume) {
            row.state = "being recovered";
            row.why.clone_from(why);
        }
    }
}

const SETTLED: &str = "settled";
const GROWING: &str = "growing";

#[derive(Debug, PartialEq, Eq)]
struct Row {
    claim: String,
    volume: String,
    node: String,
    state: &'static str,
    asked: String,
    has: String,
    why: String,
}

impl Row {
    /// Marks a volume whose storage may hold data, and whose persistent volume is gone.
    fn lacks_volume(&mut self) {
        self.state = "without a volume";
        "the persistent volume was removed by force: the storage stays until its NodeVolume says state: Absent"
            .clone_into(&mut self.why);
    }
}

/// Builds a NodeVolume's row. The heartbeat's age depends on the node's clock, and a wrong clock shows in the message.
fn row(node_volume: &NodeVolume, node: &StorageNodeStatus, now: Timestamp) -> Row {
    let status = node_volume.status.clone().unwrap_or_default();
    let claim = &node_volume.spec.claim;
    let state = state(node_volume, &status);
    let silence = LastHeartbeat::older_than(node, now, SILENCE).filter(|_| state != SETTLED);
    Row {
        claim: format!("{}/{}", claim.namespace, claim.name),
        volume: node_volume.name_any(),
        node: node_volume.spec.node.clone(),
        state,
        asked: Bytes(node_volume.spec.size).to_string(),
        has: status
            .size
            .map_or_else(|| "-".to_owned(), |size| Bytes(size).to_string()),
        why: match (silence, status.error) {
            (Some(silence), _) => format!("the agent of node {} {silence}", node_volume.spec.node),
            (None, Some(problem)) => problem.message,
            (None, None) => String::new(),
        },
    }
}

fn state(node_volume: &NodeVolume, status: &NodeVolumeStatus) -> &'static str {
    let small = status.size.is_some_and(|size| size < node_volume.spec.size);
    match (node_volume.spec.state, status.state) {
        (StorageState::Absent, _) => "being deleted",
        (StorageState::Present, Some(StorageState::Present)) if small => GROWING,
        (StorageState::Present, Some(StorageState::Present)) if node_volume.spec.published => {
            SETTLED
        }
        (StorageState::Present, _) => "being made",
    }
}

fn format(rows: &[Row], settled: usize) -> String {
    let head = ["CLAIM", "VOLUME", "NODE", "STATE", "ASKED", "HAS", "WHY"];
    let mut lines = vec![head.map(str::to_owned)];
    // Drivers' messages are untrusted: control characters are replaced, which also joins lines.
    let shown = |cell: &str| cell.replace(char::is_control, " ");
    lines.extend(rows.iter().map(|row| {
        let Row {
            claim,
            volume,
            node,
            state,
            asked,
            has,
            why,
        } = row;
        [claim, volume, node, *state, asked, has, why].map(shown)
    }));
    let mut text = String::new();
    if !rows.is_empty() {
        let width = |column: usize| {
            let widths = lines.iter().map(|line| line[column].chars().count());
            widths.max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..head.len()).map(width).collect();
        for line in &lines {
            let cells = line
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:width$}"));
            text += cells.collect::<Vec<_>>().join("  ").trim_end();
            text.push('\n');
        }
    }
    text + &format!("{settled} volumes are settled\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        client::{Budget, Fence, connect},
        support::metrics::Metrics,
    };
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
        row(node_volume, &seen(Some(NOW)), NOW.parse().unwrap())
    }

    #[test]
    fn a_volume_that_waits_for_a_silent_node_is_shown_with_when_it_was_heard_of() {
        let now = NOW.parse().unwrap();
        let small = json!({"state": "Present", "size": 1u64 << 30});
        let grows = node_volume("Present", true, small);
        let why = |node_volume: &NodeVolume, when| row(node_volume, &seen(when), now).why;
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
            format(&[heard(&node_volume)], 3),
            "CLAIM    VOLUME  NODE  STATE    ASKED  HAS  WHY\n\
             ns/data  pvc-1   n     growing  2Gi    1Gi  the pool is full\n\
             3 volumes are settled\n"
        );
    }

    #[test]
    fn storage_whose_volume_was_removed_by_force_is_not_settled() {
        let server = Server::start().unwrap();
        let full = json!({"state": "Present", "size": 2u64 << 30});
        for name in ["pvc-1", "pvc-2"] {
            let mut node_volume = serde_json::to_value(node_volume("Present", true, Value::Null));
            node_volume.as_mut().unwrap()["metadata"]["name"] = name.into();
            let key = Key::new("NodeVolume", "", name);
            server.store().create(&key, node_volume.unwrap()).unwrap();
            server.store().merge_status(&key, &full).unwrap();
        }
        // The volume has lost its labels.
        let volume = json!({"metadata": {"name": "pvc-2"}, "spec": {"capacity": {}}});
        let key = Key::new("PersistentVolume", "", "pvc-2");
        server.store().create(&key, volume).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), server.kubeconfig()).unwrap();
        let (budget, fence) = (Budget::of(Some(100.0)), Fence::default());
        let shown = async {
            let client = connect(Some(file.path()), budget, fence, Metrics::default()).await;
            table(&client.unwrap(), false).await.unwrap()
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let table = runtime.unwrap().block_on(shown);
        let lines = Vec::from_iter(table.lines());
        assert_eq!(lines.len(), 3, "{table}");
        assert!(lines[1].contains("pvc-1") && lines[1].contains("without a volume"));
        assert_eq!(lines[2], "1 volumes are settled");
    }
}
