//! `flexvol-controller status`: volumes and claims that wait, and for what.

mod agents;
mod claims;
mod output;
#[cfg(test)]
mod tests;

use crate::{
    api::{
        v1alpha1::{NodeVolume, NodeVolumeStatus, StorageNodeStatus, StorageState},
        well_known::MANAGED,
    },
    cli::recover,
    client::{MaybePartial, paginate},
    k8s::volume::handed_on,
    placement::{LastHeartbeat, SILENCE},
};
use agents::Agents;
use anyhow::{Context, Result};
use claims::Claims;
use flexvol_sdk::Bytes;
use k8s_openapi::{api::core::v1::PersistentVolume, jiff::Timestamp};
use kube::{Api, Client, ResourceExt, api::ListParams};
pub use output::Output;
use serde::Serialize;
use std::collections::{HashMap, HashSet};

/// What is shown, and how.
#[derive(Clone, Debug, Default)]
pub struct StatusOptions {
    /// Also what is settled.
    pub all: bool,
    /// Only the claims of this namespace.
    pub namespace: Option<String>,
    /// The format.
    pub output: Output,
}

/// Returns all volumes, or those that wait.
///
/// # Errors
/// When a list fails.
pub async fn show(client: &Client, options: &StatusOptions) -> Result<String> {
    let all = options.all;
    let wanted = |row: &Row| {
        let namespace = options.namespace.as_deref();
        namespace.is_none_or(|only| row.claim.split('/').next() == Some(only))
    };
    let agents = Agents::list(client).await?;
    let volumes = Volumes::list(client).await?;
    let mut claims = Claims::list(client, agents.reports()).await?;
    let now = Timestamp::now();
    let node_volumes: Api<MaybePartial<NodeVolume>> = Api::all(client.clone());
    let (mut rows, mut settled, mut doubtful) = (Vec::new(), 0, Vec::new());
    rows.extend(agents.unread().filter(wanted));
    let pages = ListParams::default().limit(paginate::PAGE_SIZE);
    let listed = paginate::each(&node_volumes, pages, |node_volume| {
        let Some(node_volume) = node_volume.object() else {
            let row = Row {
                volume: node_volume.name_any(),
                ..Row::not_understood("nodevolume", &node_volume.name_any())
            };
            rows.extend(Some(row).filter(wanted));
            return;
        };
        let mut row = row(node_volume, agents.report(&node_volume.spec.node), now);
        claims.correct(&mut row);
        volumes.correct(&mut row);
        if !wanted(&row) {
            return;
        }
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
    rows.extend(claims.without_node_volume().filter(wanted));
    Ok(output::format(options.output, &rows, settled))
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

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Row {
    claim: String,
    volume: String,
    node: String,
    state: &'static str,
    #[serde(rename = "requested")]
    asked: String,
    has: String,
    why: String,
}

impl Row {
    /// The row of an object that lacks required fields, or has other values in them.
    fn not_understood(kind: &str, name: &str) -> Self {
        let unknown = || "-".to_owned();
        Row {
            claim: unknown(),
            volume: unknown(),
            node: unknown(),
            state: "not understood",
            asked: unknown(),
            has: unknown(),
            why: format!(
                "it is of another version, or was edited: kubectl get {kind} {name} -o yaml"
            ),
        }
    }

    /// Marks a volume whose storage may hold data, and whose persistent volume is gone.
    fn lacks_volume(&mut self) {
        self.state = "without a volume";
        "the persistent volume was removed by force: the storage stays until its NodeVolume says state: Absent"
            .clone_into(&mut self.why);
    }
}

/// Builds a NodeVolume's row, with what its node's agent reports, if that is understood. The heartbeat's age depends on
/// the node's clock, and a wrong clock shows in the message.
fn row(node_volume: &NodeVolume, node: Option<&StorageNodeStatus>, now: Timestamp) -> Row {
    let status = node_volume.status.clone().unwrap_or_default();
    let claim = &node_volume.spec.claim;
    let state = state(node_volume, &status);
    let silence = node
        .filter(|_| state != SETTLED)
        .and_then(|node| LastHeartbeat::older_than(node, now, SILENCE));
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
