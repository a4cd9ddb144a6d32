//! On which node a volume is made, and by which name it is bound to one.
//!
//! What one node says of itself, by its agent or in its own object, keeps no volume from another node.

use super::node_state::{self, NodeState};
use crate::{
    api::well_known::{HOSTNAME, hostname},
    k8s::node::TOO_LARGE,
    placement::{NoNode, Nodes, Unschedulable, VolumeRequest},
};
use anyhow::{Context, Result};
use flexvol_sdk::Bytes;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt, api::ListParams};
use std::{collections::HashSet, fmt};

/// Why a node can have no volume, whatever is asked of it, in words for people.
#[derive(Debug)]
pub(super) struct Unfit(String);

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unfit {}

/// The node with the most room, if Kubernetes has it too, and sends pods there: its agent may have been
/// heard of a moment before it went, and tolerates every taint. One that is tainted is taken if there is no
/// other: the pods may tolerate that. Why one is unfit is told if there is no other.
pub(super) async fn with_room(
    client: &Client,
    nodes: &Nodes,
    driver: &str,
    class: &str,
    size: Bytes,
    asker: VolumeRequest<'_>,
) -> Result<String> {
    let mut doubted = HashSet::new();
    loop {
        let name = nodes.with_room(driver, class, size, asker)?;
        let standing = match standing(client, &name).await {
            Ok(standing) => standing,
            // What the API server does not answer is nothing that the node says.
            Err(why) => {
                let Unfit(why) = why.downcast()?;
                nodes.bar(&name, Some(Unschedulable::Unfit));
                if doubted.insert(name) {
                    continue;
                }
                return Err(NoNode(why).into());
            }
        };
        match standing {
            Standing::Missing => nodes.miss(&name),
            Standing::There(bar) => {
                nodes.bar(&name, bar);
                if bar.is_none()
                    || bar == Some(Unschedulable::Tainted) && !doubted.insert(name.clone())
                {
                    return Ok(name);
                }
            }
        }
    }
}

/// What Kubernetes says of a node.
enum Standing {
    /// It is not there, or its kubelet does not answer.
    Missing,
    There(Option<Unschedulable>),
}

async fn standing(client: &Client, name: &str) -> Result<Standing> {
    let Some(node) = node_state::read(client, name).await? else {
        return Ok(Standing::Missing);
    };
    if node.cut {
        return Err(Unfit(format!("node {name} {TOO_LARGE}")).into());
    }
    if NodeState::of(Some(&node)) != NodeState::Ready {
        return Ok(Standing::Missing);
    }
    let bar = Unschedulable::of(&node.object);
    if bar != Some(Unschedulable::Cordoned) {
        bound_to(client, name).await?;
    }
    Ok(Standing::There(bar))
}

/// The hostname that volumes of a node are bound to, or why none can be.
///
/// # Errors
/// When the API server does not answer.
pub(super) async fn hostname_of(client: &Client, name: &str) -> Result<Result<String, String>> {
    match bound_to(client, name).await {
        Ok(hostname) => Ok(Ok(hostname)),
        Err(why) => why.downcast().map(|Unfit(why)| Err(why)),
    }
}

/// The name that volumes of a node are bound to: usually its own, but not always. A node may write its
/// label itself, so it is looked that no other one has it: pods would be sent there.
async fn bound_to(client: &Client, name: &str) -> Result<String> {
    // As it usually is, one request tells all. No label is longer.
    if name.len() <= 63 {
        let called = called(client, name).await?;
        if called.iter().any(|node| node.name_any() == name) {
            return the_only(name, name, &called);
        }
    }
    let node = node_state::read(client, name).await?;
    let node = node.ok_or_else(|| {
        Unfit(format!(
            "node {name} is not in the cluster, so no volume can be bound to it; bring it back"
        ))
    })?;
    let label = hostname(node.object.metadata.labels.as_ref()).ok_or_else(|| {
        Unfit(format!(
            "node {name} has no label {HOSTNAME}, to which its volumes could be bound; set it"
        ))
    })?;
    the_only(name, label, &called(client, label).await?)
}

/// The nodes that have a label by which volumes are bound, as the API server's cache has them: before
/// 1.31 it would read and decode every node of the cluster for a fresh list. A node may change its
/// label after any list.
async fn called(client: &Client, label: &str) -> Result<Vec<Node>> {
    let nodes: Api<Node> = Api::all(client.clone());
    let with_it = ListParams::default()
        .labels(&format!("{HOSTNAME}={label}"))
        .match_any();
    let found = nodes.list(&with_it).await;
    Ok(found.context("list the nodes of a label")?.items)
}

/// The label of the node, if no other one has it.
fn the_only(name: &str, label: &str, found: &[Node]) -> Result<String> {
    let mut names = found.iter().map(ResourceExt::name_any);
    match names.find(|other| other != name) {
        None => Ok(label.to_owned()),
        Some(other) => Err(Unfit(format!(
            "bind the volume to node {name}: node {other} has its label {HOSTNAME}={label} too, so pods might be sent there; correct the label of the one that has no right to it"
        ))
        .into()),
    }
}
