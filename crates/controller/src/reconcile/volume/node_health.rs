//! What is said of a node that has to act for a volume, and of which nothing is heard.

use crate::{
    api::{
        drivers::Ours,
        labels::{is_object_name, volume_name},
        v1alpha1::{NodeVolume, Wanted},
    },
    cache::nodes::{Asker, Nodes, Silence},
    client::Read,
    decide::{Away, Wish},
    k8s::{claim, class, meta::uid, node::is_unready},
    observe::{Live, provisioning},
    reconcile::volume::placement,
};
use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt};

/// What Kubernetes knows of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// It has no object.
    Missing,
    /// Its kubelet does not answer.
    Unready,
    /// Its kubelet answers.
    Ready,
}

impl Known {
    /// What a node's object says.
    pub fn of(node: Option<&Read<Node>>) -> Self {
        let Some(node) = node else {
            return Known::Missing;
        };
        // Of one that is cut the rest may say so.
        if is_unready(&node.object) || node.cut {
            Known::Unready
        } else {
            Known::Ready
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

/// What became of the node that has to act for a volume: the one that was ordered, or else the one that
/// the scheduler chose. Of ordered nodes the API server is asked only about those whose agents are silent.
///
/// # Errors
/// When the API server does not answer.
pub(crate) async fn away(
    client: &Client,
    nodes: &Nodes,
    live: &Live,
    ours: &Ours,
) -> Result<Option<Away>> {
    let Some(order) = &live.order else {
        return chosen(client, nodes, live, ours).await;
    };
    let node = &order.spec.node;
    let Some(silence) = nodes.silence(node) else {
        return Ok(None);
    };
    let found = read(client, node).await?;
    let known = Known::of(found.as_ref());
    Ok(Some(Away {
        why: words(node, known, &silence, Some(order)),
        lost: known != Known::Ready,
        removed: known == Known::Missing,
    }))
}

/// Why the node that the scheduler chose cannot make a volume.
async fn chosen(client: &Client, nodes: &Nodes, live: &Live, ours: &Ours) -> Result<Option<Away>> {
    let (Some(claim), Some(class)) = (&live.claim, &live.class) else {
        return Ok(None);
    };
    // Anybody may write it into a claim.
    let node = match provisioning::wish(claim, Some(class), ours) {
        Wish::Storage { node: Some(node) } if is_object_name(&node) => node,
        _ => return Ok(None),
    };
    let silence = nodes.silence(&node);
    if silence.is_some() || class.allowed_topologies.is_some() {
        let found = read(client, &node).await?;
        if let Some(silence) = silence {
            let known = Known::of(found.as_ref());
            return Ok(Some(Away {
                why: words(&node, known, &silence, None),
                // One that never had an agent may never get one.
                lost: known != Known::Ready || silence == Silence::Never,
                removed: known == Known::Missing,
            }));
        }
        let labels = found
            .as_ref()
            .and_then(|node| node.object.metadata.labels.as_ref());
        if !class::allows_node(class, labels) {
            return Ok(Some(Away {
                why: format!(
                    "node {node} has not the labels that the class's allowedTopologies ask for; another node is asked for"
                ),
                lost: true,
                removed: false,
            }));
        }
    }
    if let Err(why) = placement::hostname_of(client, &node).await? {
        return Ok(Some(Away {
            why: format!("{why}; another node is asked for"),
            lost: true,
            removed: false,
        }));
    }
    let name = class.metadata.name.as_deref().unwrap_or_default();
    let size = claim
        .spec
        .as_ref()
        .and_then(|spec| claim::request(spec).ok());
    let Some(driver) = ours.driver_of(&class.provisioner) else {
        return Ok(None);
    };
    let volume = volume_name(uid(&claim.metadata));
    let asker = Asker {
        volume: &volume,
        namespace: claim.metadata.namespace.as_deref().unwrap_or_default(),
    };
    if let Some(why) = nodes.refuses(name, asker) {
        return Ok(Some(Away {
            why,
            lost: false,
            removed: false,
        }));
    }
    let lacks = nodes.lacks(&node, driver, name, size.unwrap_or_default(), asker);
    Ok(lacks.map(|why| Away {
        why: format!("{why}; another node is asked for"),
        lost: true,
        removed: false,
    }))
}

fn words(node: &str, known: Known, silence: &Silence, order: Option<&NodeVolume>) -> String {
    let state = match known {
        Known::Missing => "is not in the cluster any more, and",
        Known::Unready => "is not ready, and",
        Known::Ready => "is ready, but",
    };
    let remedy = match order {
        None if known == Known::Ready && *silence != Silence::Never => "start its agent".to_owned(),
        None => "another node is asked for".to_owned(),
        Some(order) if order.spec.wanted == Wanted::Present => {
            "the volume's storage is there: bring the node back with its agent".to_owned()
        }
        // Nobody but a person can know that a node never comes back.
        Some(order) => format!(
            "the storage to delete is there: bring the node back with its agent, or, if it is lost for good, say that its storage is gone: kubectl patch nodevolume {} --subresource=status --type=merge --patch '{{\"status\":{{\"found\":\"Absent\"}}}}'",
            order.name_any()
        ),
    };
    format!("node {node} {state} its agent {silence}; {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    #[test]
    fn only_a_kubelet_that_says_so_is_not_ready() {
        let node = |conditions| -> Read<Node> {
            from_value(json!({"metadata": {"name": "n"}, "status": {"conditions": conditions}}))
                .unwrap()
        };
        let ready = |status: &str| node(json!([{"type": "Ready", "status": status}]));
        assert_eq!(Known::of(None), Known::Missing);
        assert_eq!(Known::of(Some(&ready("Unknown"))), Known::Unready);
        assert_eq!(Known::of(Some(&ready("False"))), Known::Unready);
        assert_eq!(Known::of(Some(&ready("True"))), Known::Ready);
        assert_eq!(Known::of(Some(&node(json!([])))), Known::Ready);
        let mut cut = ready("True");
        cut.cut = true;
        assert_eq!(Known::of(Some(&cut)), Known::Unready);
    }

    #[test]
    fn people_are_told_which_node_since_when_and_what_to_do() {
        let order = |wanted: &str| -> NodeVolume {
            from_value(json!({
                "apiVersion": NodeVolume::api_version(), "kind": "NodeVolume",
                "metadata": {"name": "pvc-1"},
                "spec": {
                    "driver": "a/b", "node": "n", "wanted": wanted, "size": 1,
                    "claim": {"namespace": "ns", "name": "data", "uid": "1"},
                },
            }))
            .unwrap()
        };
        let since = Silence::Since("12:00:00".to_owned());
        let of = |known, order: Option<&NodeVolume>| words("n", known, &since, order);
        assert_eq!(
            of(Known::Unready, Some(&order("Present"))),
            "node n is not ready, and its agent was last heard of at 12:00:00; the volume's storage is there: bring the node back with its agent"
        );
        let gone = of(Known::Missing, Some(&order("Absent")));
        assert!(gone.contains("not in the cluster any more"), "{gone}");
        assert!(gone.contains("kubectl patch nodevolume pvc-1 "), "{gone}");
        assert!(
            gone.contains(r#"'{"status":{"found":"Absent"}}'"#),
            "{gone}"
        );
        assert!(of(Known::Ready, None).ends_with("start its agent"));
        let never = words("n", Known::Ready, &Silence::Never, None);
        assert!(never.ends_with("another node is asked for"), "{never}");
        assert!(of(Known::Missing, None).ends_with("another node is asked for"));
    }
}
