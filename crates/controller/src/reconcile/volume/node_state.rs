//! What Kubernetes knows of a node, read from its object.

use crate::{client::Read, k8s::node::is_unready};
use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};

/// Whether a node is there and ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeState {
    /// It has no object.
    Missing,
    /// Its kubelet does not answer.
    Unready,
    /// Its kubelet answers.
    Ready,
}

impl NodeState {
    /// What a node's object says.
    pub fn of(node: Option<&Read<Node>>) -> Self {
        let Some(node) = node else {
            return NodeState::Missing;
        };
        // Of one that is cut the rest may say so.
        if is_unready(&node.object) || node.cut {
            NodeState::Unready
        } else {
            NodeState::Ready
        }
    }
}

/// A node's object.
///
/// # Errors
/// When the API server does not answer.
pub(super) async fn read(client: &Client, name: &str) -> Result<Option<Read<Node>>> {
    let nodes: Api<Read<Node>> = Api::all(client.clone());
    nodes.get_opt(name).await.context("read the node")
}
