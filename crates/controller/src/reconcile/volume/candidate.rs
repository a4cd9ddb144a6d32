//! On which node a volume is made.
//!
//! What one node says of itself, by its agent or in its own object, keeps no volume from another node.

use super::{context::Context, node_state::NodeState, recent_nodes::Unfit};
use crate::{
    k8s::node::TOO_LARGE,
    placement::{NoNode, Unschedulable, VolumeRequest},
};
use anyhow::Result;
use flexvol_sdk::Bytes;
use std::collections::HashSet;

/// The node with the most room, if Kubernetes has it too, and sends pods there: its agent may have been
/// heard of a moment before it went, and tolerates every taint. One that is tainted is taken if there is no
/// other: the pods may tolerate that. Why one is unfit is told if there is no other.
pub(super) async fn with_room(
    context: &Context,
    driver: &str,
    class: &str,
    size: Bytes,
    asker: VolumeRequest<'_>,
) -> Result<String> {
    let nodes = &context.nodes;
    let mut doubted = HashSet::new();
    loop {
        let name = nodes.with_room(driver, class, size, asker)?;
        let standing = match standing(context, &name).await {
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

async fn standing(context: &Context, name: &str) -> Result<Standing> {
    let found = context.recent_nodes.look(&context.client, name).await?;
    let Some(node) = &found.node else {
        return Ok(Standing::Missing);
    };
    if node.cut {
        return Err(Unfit(format!("node {name} {TOO_LARGE}")).into());
    }
    if NodeState::of(Some(node)) != NodeState::Ready {
        return Ok(Standing::Missing);
    }
    let bar = Unschedulable::of(&node.object);
    if bar != Some(Unschedulable::Cordoned) {
        found.hostname(name)?;
    }
    Ok(Standing::There(bar))
}
