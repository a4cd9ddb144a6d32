//! Forgetting what agents said of nodes that are in the cluster no more, or that have no agent any more: nobody
//! else does, and where nodes come and go it would pile up.
//!
//! A node of which storage is ordered is not forgotten, as people are told when it was last heard of.

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

/// An agent that was silent for so long was taken from its node, whatever the clocks of two hosts differ by.
const LONG_AGO: Duration = Duration::from_secs(24 * 3600);

/// Looks at silent nodes as often as one may become silent.
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

/// Removes what a node's agent said last at that time, if Kubernetes has no such node, or if that was long
/// ago, and says whether it did.
async fn forget(client: &Client, nodes: &Nodes, node: &str, seen: Option<&str>) -> Result<bool> {
    let live: Api<Node> = Api::all(client.clone());
    let is_there = live.get_opt(node).await.context("read the node")?.is_some();
    let all: Api<StorageNode> = Api::all(client.clone());
    let found = all
        .get_opt(node)
        .await
        .context("read what is on the node")?;
    let Some(found) = found else {
        // That it went was not heard here.
        nodes.remove(node);
        return Ok(false);
    };
    // Another word of its agent may not have been heard here yet.
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
