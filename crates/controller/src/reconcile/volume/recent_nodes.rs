//! Short-lived cache of nodes, and the hostnames to which volumes are bound.

use super::node_state;
use crate::{
    api::well_known::{HOSTNAME, hostname},
    client::{Read, error_message},
};
use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt, api::ListParams};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::OnceCell, time::Instant};

/// Why a node can have no volume at all, as a message.
#[derive(Debug)]
pub(super) struct Unfit(pub String);

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unfit {}

/// Returns the hostname to which a node's volumes are bound, or why none can be.
///
/// # Errors
/// When the API server does not answer.
pub(super) async fn hostname_of(client: &Client, name: &str) -> Result<Result<String, String>> {
    let found = Found::look(client, name).await?;
    Ok(found.hostname(name).map_err(|Unfit(why)| why))
}

/// Recently read nodes, for claims that come together. Before a volume is created, its node is read again.
#[derive(Debug, Default)]
pub(super) struct RecentNodes(Mutex<HashMap<String, Arc<Recent>>>);

/// The result of one read, or its error.
#[derive(Debug)]
struct Recent {
    since: Instant,
    found: OnceCell<Result<Arc<Found>, String>>,
}

/// Lifetime of an entry. Kubernetes itself notices a lost node only after tens of seconds.
const RECENT: Duration = Duration::from_secs(1);

impl RecentNodes {
    /// Reads a node. Concurrent callers for the same node share one read, and other nodes are read in parallel.
    pub async fn look(&self, client: &Client, name: &str) -> Result<Arc<Found>> {
        let recent = self.recent(name);
        let look = || async {
            let found = Found::look(client, name).await.map(Arc::new);
            found.map_err(|error| error_message(&error))
        };
        let found = recent.found.get_or_init(look).await;
        found.clone().map_err(anyhow::Error::msg)
    }

    fn recent(&self, name: &str) -> Arc<Recent> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A pending read is shared, however long it takes.
        all.retain(|_, recent| recent.since.elapsed() < RECENT || !recent.found.initialized());
        let new = || {
            Arc::new(Recent {
                since: Instant::now(),
                found: OnceCell::new(),
            })
        };
        Arc::clone(all.entry(name.to_owned()).or_insert_with(new))
    }
}

/// A node, and all nodes with its hostname label. The hostname is usually, but not always, the node's name.
#[derive(Debug)]
pub(super) struct Found {
    pub node: Option<Read<Node>>,
    called: Vec<Read<Node>>,
}

impl Found {
    async fn look(client: &Client, name: &str) -> Result<Found> {
        // Usually the hostname is the node's name, and one request suffices. Labels have at most 63 characters.
        if name.len() <= 63 {
            let called = called(client, name).await?;
            if let Some(node) = called.iter().find(|node| node.name_any() == name) {
                let node = Some(node.clone());
                return Ok(Found { node, called });
            }
        }
        let node = node_state::read(client, name).await?;
        let labels = node
            .as_ref()
            .and_then(|node| node.object.metadata.labels.as_ref());
        let called = match hostname(labels) {
            Some(label) => called(client, label).await?,
            None => Vec::new(),
        };
        Ok(Found { node, called })
    }

    /// Returns the hostname to which the node's volumes are bound. A node may write its own label, so no other node may
    /// have the same one: pods would be scheduled there.
    pub fn hostname(&self, name: &str) -> Result<String, Unfit> {
        let Some(node) = &self.node else {
            return Err(Unfit(format!(
                "node {name} is not in the cluster, so no volume can be bound to it; bring it back"
            )));
        };
        let Some(label) = hostname(node.object.metadata.labels.as_ref()) else {
            return Err(Unfit(format!(
                "node {name} has no label {HOSTNAME}, to which its volumes could be bound; set it"
            )));
        };
        let mut names = self.called.iter().map(ResourceExt::name_any);
        match names.find(|other| other != name) {
            None => Ok(label.to_owned()),
            Some(other) => Err(Unfit(format!(
                "bind the volume to node {name}: node {other} has its label {HOSTNAME}={label} too, so pods might be sent there; correct the label of the one that has no right to it"
            ))),
        }
    }
}

/// Lists the nodes with a hostname label from the API server's cache. Before 1.31, a consistent list would read and
/// decode every node of the cluster, and a node may change its label after any list.
async fn called(client: &Client, label: &str) -> Result<Vec<Read<Node>>> {
    let nodes: Api<Read<Node>> = Api::all(client.clone());
    let with_it = ListParams::default()
        .labels(&format!("{HOSTNAME}={label}"))
        .match_any();
    let found = nodes.list(&with_it).await;
    Ok(found.context("list the nodes of a label")?.items)
}
