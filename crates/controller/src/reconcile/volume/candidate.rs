//! Choice of the node where a volume is made.
//!
//! Nothing that one node's agent or object says keeps a volume from other nodes.

use super::{context::Context, node_state::NodeState, recent_nodes::Unfit};
use crate::{
    k8s::node::TOO_LARGE,
    placement::{NoNode, Unschedulable, VolumeRequest},
};
use anyhow::Result;
use flexvol_sdk::Bytes;
use std::collections::HashSet;

/// Returns the best node that Kubernetes has too and where pods may run. An agent tolerates every taint, and may have
/// sent its last heartbeat just before its node went. A tainted node is taken if there is no other, because
/// the pods may tolerate the taint. The error tells why a node is unfit if there is no other.
pub(super) async fn select_node(
    context: &Context,
    driver: &str,
    class: &str,
    size: Bytes,
    asker: VolumeRequest<'_>,
) -> Result<String> {
    let nodes = &context.nodes;
    let mut doubted = HashSet::new();
    loop {
        let name = nodes.select_node(driver, class, size, asker)?;
        let standing = match standing(context, &name).await {
            Ok(standing) => standing,
            // A failed request says nothing about the node.
            Err(why) => {
                let Unfit(why) = why.downcast()?;
                nodes.set_unschedulable(&name, Some(Unschedulable::Unfit));
                if doubted.insert(name) {
                    continue;
                }
                return Err(NoNode(why).into());
            }
        };
        match standing {
            Standing::Missing => nodes.mark_missing(&name),
            Standing::There(unschedulable) => {
                nodes.set_unschedulable(&name, unschedulable);
                if unschedulable.is_none()
                    || unschedulable == Some(Unschedulable::Tainted)
                        && !doubted.insert(name.clone())
                {
                    return Ok(name);
                }
            }
        }
    }
}

/// A node's state in Kubernetes.
enum Standing {
    /// It does not exist, or its kubelet is not ready.
    Missing,
    There(Option<Unschedulable>),
}

async fn standing(context: &Context, name: &str) -> Result<Standing> {
    let found = context.recent_nodes.look(&context.client, name).await?;
    let Some(node) = &found.node else {
        return Ok(Standing::Missing);
    };
    if node.is_truncated {
        return Err(Unfit(format!("node {name} {TOO_LARGE}")).into());
    }
    if NodeState::of(Some(node)) != NodeState::Ready {
        return Ok(Standing::Missing);
    }
    let unschedulable = Unschedulable::of(&node.object);
    if unschedulable != Some(Unschedulable::Cordoned) {
        found.hostname(name)?;
    }
    Ok(Standing::There(unschedulable))
}
