//! Garbage collection of StorageNodes whose nodes are gone, or have no agent any more. Nothing else deletes them, and
//! they would pile up where nodes come and go.
//!
//! A StorageNode is kept while its node has NodeVolumes, so that messages can tell the last heartbeat.

use crate::{
    api::v1alpha1::StorageNode,
    cache::volumes::Index,
    client::{Refusal, error_message, refusal},
    k8s::meta::only_this,
    placement::Nodes,
    support::log,
};
use anyhow::{Context, Result};
use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{Api, Client};
use std::time::Duration;
use tokio::time::sleep;

/// Silence that proves, with any difference of clocks, that the agent was removed from its node.
const LONG_AGO: Duration = Duration::from_secs(24 * 3600);

/// Checks silent nodes once in each silence limit.
pub(crate) async fn run(client: &Client, nodes: &Nodes, index: &Index) {
    loop {
        sleep(nodes.longest_silence()).await;
        let mut silent = nodes.silent();
        index.keep_free(&mut silent);
        for (node, seen) in silent {
            match forget(client, nodes, &node, seen.as_deref()).await {
                Ok(true) => log::info("a node that has gone is forgotten", &[("node", &node)]),
                Ok(false) => {}
                Err(error) => {
                    let error = error_message(&error);
                    log::warn(
                        "cannot forget a node",
                        &[("node", &node), ("error", &error)],
                    );
                }
            }
        }
    }
}

/// Deletes a StorageNode with this last heartbeat if its node is gone or the heartbeat is old. Returns whether it did.
async fn forget(client: &Client, nodes: &Nodes, node: &str, seen: Option<&str>) -> Result<bool> {
    let live: Api<Node> = Api::all(client.clone());
    let is_there = live.get_opt(node).await.context("read the node")?.is_some();
    let all: Api<StorageNode> = Api::all(client.clone());
    let found = all
        .get_opt(node)
        .await
        .context("read what is on the node")?;
    let Some(found) = found else {
        // The watch missed the deletion.
        nodes.remove(node);
        return Ok(false);
    };
    // A newer heartbeat has not arrived by the watch yet.
    if found.status.last_heartbeat_time.as_deref() != seen {
        return Ok(false);
    }
    let seen = seen.and_then(|seen| seen.parse::<Timestamp>().ok());
    let age = seen.map(|seen| Timestamp::now().duration_since(seen));
    if is_there && age.is_none_or(|age| age.unsigned_abs() < LONG_AGO) {
        return Ok(false);
    }
    match all.delete(node, &only_this(&found.metadata)).await {
        Ok(_) => Ok(true),
        Err(error) if refusal(&error) != Refusal::Other => Ok(false),
        Err(error) => Err(error).context("remove what is on the node"),
    }
}
