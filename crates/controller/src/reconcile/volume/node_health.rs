//! Availability of the node that has to act for a volume.

use super::{
    context::Context,
    node_state::{NodeState, read},
    recent_nodes::Unfit,
};
use crate::{
    api::{
        v1alpha1::{NodeVolume, StorageState},
        well_known::{is_object_name, volume_name},
    },
    claims::{UnavailableNode, Wish},
    k8s::{claim, class, meta::uid},
    observe::{VolumeObjects, provisioning},
    placement::{LastHeartbeat, VolumeRequest},
};
use anyhow::Result;
use kube::ResourceExt;

/// Returns why the node that has to act is unavailable: the NodeVolume's node, or else the one that the scheduler
/// selected. For a NodeVolume's node, the API server is asked only if the agent is silent.
///
/// # Errors
/// When the API server does not answer.
pub(crate) async fn unavailable_node(
    context: &Context,
    live: &VolumeObjects,
) -> Result<Option<UnavailableNode>> {
    let Some(node_volume) = &live.node_volume else {
        return unavailable_selected_node(context, live).await;
    };
    let nodes = &context.nodes;
    let node = &node_volume.spec.node;
    let Some(silence) = nodes.silence(node) else {
        return Ok(None);
    };
    let found = read(&context.client, node).await?;
    let known = NodeState::of(found.as_ref());
    Ok(Some(UnavailableNode {
        node: node.clone(),
        why: unavailable_message(node, known, &silence, Some(node_volume)),
        may_reschedule: known != NodeState::Ready,
        // By then all writes of late leaders have failed, and a live agent has sent a heartbeat.
        removed: known == NodeState::Missing && nodes.is_unheard(node),
    }))
}

/// Returns why the node that the scheduler selected cannot make a volume.
async fn unavailable_selected_node(
    context: &Context,
    live: &VolumeObjects,
) -> Result<Option<UnavailableNode>> {
    let (nodes, ours) = (&context.nodes, &context.ours);
    let (Some(claim), Some(class)) = (&live.claim, &live.class) else {
        return Ok(None);
    };
    // The annotation is untrusted: a claim's author may write it.
    let node = match provisioning::wish(claim, Some(class), ours) {
        Wish::Storage { node: Some(node) } if is_object_name(&node) => node,
        _ => return Ok(None),
    };
    let found = context.recent_nodes.look(&context.client, &node).await?;
    if let Some(silence) = nodes.absence(&node) {
        let known = NodeState::of(found.node.as_ref());
        return Ok(Some(UnavailableNode {
            why: unavailable_message(&node, known, &silence, None),
            node,
            // A node that never had an agent may never get one.
            may_reschedule: known != NodeState::Ready || silence == LastHeartbeat::Never,
            removed: false,
        }));
    }
    if class.allowed_topologies.is_some() {
        // Lists have not all labels.
        let whole = read(&context.client, &node).await?;
        let labels = whole
            .as_ref()
            .and_then(|node| node.object.metadata.labels.as_ref());
        if !class::allows_node(class, labels) {
            return Ok(Some(UnavailableNode {
                node: node.clone(),
                why: format!(
                    "node {node} has not the labels that the class's allowedTopologies ask for; another node is asked for"
                ),
                may_reschedule: true,
                removed: false,
            }));
        }
    }
    if let Err(Unfit(why)) = found.hostname(&node) {
        nodes.record_unbindable(&node);
        return Ok(Some(UnavailableNode {
            node,
            why: format!("{why}; another node is asked for"),
            may_reschedule: true,
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
    let asker = VolumeRequest {
        volume: &volume,
        namespace: claim.metadata.namespace.as_deref().unwrap_or_default(),
    };
    if let Some(why) = nodes.infeasible_reason(name, asker) {
        return Ok(Some(UnavailableNode {
            node,
            why,
            may_reschedule: false,
            removed: false,
        }));
    }
    let unfit = nodes.unfit_reason(&node, driver, name, size.unwrap_or_default(), asker);
    Ok(unfit.map(|why| UnavailableNode {
        node,
        why: format!("{why}; another node is asked for"),
        may_reschedule: true,
        removed: false,
    }))
}

fn unavailable_message(
    node: &str,
    known: NodeState,
    silence: &LastHeartbeat,
    node_volume: Option<&NodeVolume>,
) -> String {
    let state = match known {
        NodeState::Missing => "is not in the cluster any more, and",
        NodeState::Unready => "is not ready, and",
        NodeState::Ready => "is ready, but",
    };
    let remedy = match node_volume {
        None if known == NodeState::Ready && *silence != LastHeartbeat::Never => {
            "start its agent".to_owned()
        }
        None => "another node is asked for".to_owned(),
        Some(node_volume) if node_volume.spec.state == StorageState::Present => {
            let status = node_volume.status.as_ref();
            let is_there = status.is_some_and(|status| status.state == Some(StorageState::Present));
            format!(
                "the volume's storage {} there: bring the node back with its agent",
                if is_there { "is" } else { "may be" }
            )
        }
        // Only an administrator can know that a node never comes back.
        Some(node_volume) => format!(
            "the storage to delete is there: bring the node back with its agent, or, if it is lost for good, say that its storage is gone: {}",
            absence_command(&node_volume.name_any())
        ),
    };
    format!("node {node} {state} its agent {silence}; {remedy}")
}

/// Returns what to do if a node fails again and again to delete storage that no volume has. Its driver may have made it
/// before a call of `provision` failed, or before an agent ended without an answer, so nothing proves that it is not
/// there: only the driver or a person knows.
pub(super) fn deletion_remedy(live: &VolumeObjects) -> Option<String> {
    let node_volume = live.node_volume.as_ref()?;
    let spec = &node_volume.spec;
    let is_unused = spec.state == StorageState::Absent && !spec.published;
    (is_unused && live.unavailable.is_none() && live.persistent_problem().is_some()).then(|| {
        format!(
            "no other node is asked, because this one may have made the storage and does not delete it: mend its driver or its pool, or, if nothing of the volume is there, say so: {}",
            absence_command(&node_volume.name_any())
        )
    })
}

/// The command by which an administrator says that a NodeVolume's storage is gone.
fn absence_command(name: &str) -> String {
    format!(
        "kubectl patch nodevolume {name} --subresource=status --type=merge --patch '{{\"status\":{{\"state\":\"Absent\"}}}}'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::well_known::{PROVISIONER, SELECTED_NODE},
        client::{Budget, Fence, Read, connect},
        drivers::ServedDrivers,
        placement::Nodes,
        support::metrics::Metrics,
    };
    use flexvol_apiserver::{Key, Server};
    use k8s_openapi::api::core::v1::Node;
    use serde_json::{from_value, json};
    use std::{sync::Arc, time::Duration};

    #[test]
    fn only_a_kubelet_that_says_so_is_not_ready() {
        let node = |conditions| -> Read<Node> {
            from_value(json!({"metadata": {"name": "n"}, "status": {"conditions": conditions}}))
                .unwrap()
        };
        let ready = |status: &str| node(json!([{"type": "Ready", "status": status}]));
        assert_eq!(NodeState::of(None), NodeState::Missing);
        assert_eq!(NodeState::of(Some(&ready("Unknown"))), NodeState::Unready);
        assert_eq!(NodeState::of(Some(&ready("False"))), NodeState::Unready);
        assert_eq!(NodeState::of(Some(&ready("True"))), NodeState::Ready);
        assert_eq!(NodeState::of(Some(&node(json!([])))), NodeState::Ready);
        let mut truncated = ready("True");
        truncated.is_truncated = true;
        assert_eq!(NodeState::of(Some(&truncated)), NodeState::Unready);
    }

    /// The scheduler selected a node whose hostname label another node has too.
    #[test]
    fn a_chosen_node_to_which_nothing_can_be_bound_is_not_offered_any_more() {
        let server = Server::start().unwrap();
        for name in ["taken", "thief"] {
            let labels = json!({"kubernetes.io/hostname": "taken"});
            let node = json!({"metadata": {"name": name, "labels": labels}});
            let key = Key::new("Node", "", name);
            server.store().create(&key, node).unwrap();
        }
        let nodes = Arc::new(Nodes::new(Duration::from_secs(3600)));
        for name in ["taken", "free"] {
            let status = json!({"drivers": {"a/b": {}}, "capacities": {"late": 10}});
            let node = json!({
                "apiVersion": "", "kind": "", "metadata": {"name": name}, "status": status,
            });
            nodes.put(from_value(node).unwrap());
        }
        let rooms = || {
            nodes
                .capacities("a/b", "late")
                .into_iter()
                .map(|room| room.node)
        };
        assert_eq!(Vec::from_iter(rooms()), ["free", "taken"]);
        let claim = json!({
            "metadata": {"uid": "1", "annotations": {PROVISIONER[0]: "a/b", SELECTED_NODE: "taken"}},
            "spec": {
                "storageClassName": "late", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1"}},
            },
        });
        let class = json!({
            "metadata": {"name": "late"}, "provisioner": "a/b",
            "volumeBindingMode": "WaitForFirstConsumer",
        });
        let live = VolumeObjects {
            claim: Some(from_value(claim).unwrap()),
            class: Some(from_value(class).unwrap()),
            ..VolumeObjects::default()
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), server.kubeconfig()).unwrap();
        let found = async {
            let budget = Budget::of(Some(100.0));
            let (fence, metrics) = (Fence::default(), Metrics::default());
            let client = connect(Some(file.path()), budget, fence, metrics).await;
            let ours = ServedDrivers::from(["a/b"]);
            let nodes = Arc::clone(&nodes);
            let context = Context::new(client.unwrap(), ours, nodes, Metrics::default());
            // Claims that come together share what is read of their node.
            let all = (0..9).map(|_| unavailable_node(&context, &live));
            futures_util::future::join_all(all).await.pop().unwrap()
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let found = runtime.unwrap().block_on(found).unwrap().unwrap();
        assert!(found.may_reschedule && found.why.contains("node thief has its label"));
        assert_eq!(Vec::from_iter(rooms()), ["free"]);
        assert_eq!(server.requests(), ["GET Node "]);
    }

    #[test]
    fn people_are_told_which_node_since_when_and_what_to_do() {
        let node_volume = |wanted: &str| -> NodeVolume {
            from_value(json!({
                "apiVersion": NodeVolume::api_version(), "kind": "NodeVolume",
                "metadata": {"name": "pvc-1"},
                "spec": {
                    "driver": "a/b", "node": "n", "state": wanted, "size": 1,
                    "claim": {"namespace": "ns", "name": "data", "uid": "1"},
                },
            }))
            .unwrap()
        };
        let since = LastHeartbeat::Since("12:00:00".to_owned());
        let of = |known, node_volume: Option<&NodeVolume>| {
            unavailable_message("n", known, &since, node_volume)
        };
        assert_eq!(
            of(NodeState::Unready, Some(&node_volume("Present"))),
            "node n is not ready, and its agent was last heard of at 12:00:00; the volume's storage may be there: bring the node back with its agent"
        );
        let mut made = node_volume("Present");
        made.status = from_value(json!({"state": "Present"})).unwrap();
        let told = of(NodeState::Unready, Some(&made));
        assert!(told.contains("; the volume's storage is there: "), "{told}");
        let gone = of(NodeState::Missing, Some(&node_volume("Absent")));
        assert!(gone.contains("not in the cluster any more"), "{gone}");
        assert!(gone.contains("kubectl patch nodevolume pvc-1 "), "{gone}");
        assert!(
            gone.contains(r#"'{"status":{"state":"Absent"}}'"#),
            "{gone}"
        );
        assert!(of(NodeState::Ready, None).ends_with("start its agent"));
        let never = unavailable_message("n", NodeState::Ready, &LastHeartbeat::Never, None);
        assert!(never.ends_with("another node is asked for"), "{never}");
        assert!(of(NodeState::Missing, None).ends_with("another node is asked for"));
    }
}
