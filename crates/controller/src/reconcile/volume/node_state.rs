//! State of a node in Kubernetes.

use crate::{client::Read, k8s::node::is_unready};
use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};

/// Whether a node exists and is ready.
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
    /// Reads the state from a node's object.
    pub fn of(node: Option<&Read<Node>>) -> Self {
        let Some(node) = node else {
            return NodeState::Missing;
        };
        // The unread part may contain a condition.
        if is_unready(&node.object) || node.is_truncated {
            NodeState::Unready
        } else {
            NodeState::Ready
        }
    }
}

/// Reads a node.
///
/// # Errors
/// When the API server does not answer.
pub(super) async fn read(client: &Client, name: &str) -> Result<Option<Read<Node>>> {
    let nodes: Api<Read<Node>> = Api::all(client.clone());
    nodes.get_opt(name).await.context("read the node")
}
