//! Deadlines for a node to act, whatever its agent reports.

use super::{LastHeartbeat, Nodes, pending_calls::LONG};
use crate::{
    agent::exec::{DEADLINE, LONGEST_DEADLINE},
    api::v1alpha1::{NodeVolume, StorageNodeStatus, StorageState},
};
use std::{collections::BTreeMap, time::Duration};

/// Multiple of the silence limit after which a NodeVolume without progress moves to another node.
const SILENCES: u32 = 4;

/// Returns the deadline of a node. It exceeds the timeout of driver calls that its agent reports, up to the agents'
/// maximum: otherwise storage that a slow driver makes in time would be deleted and made on the next node, for ever.
fn longest(silence: Duration, said: Option<u64>) -> Duration {
    let deadline = said.map_or(DEADLINE, Duration::from_secs);
    let deadline = deadline.min(Duration::from_secs(LONGEST_DEADLINE));
    let least = silence.saturating_mul(SILENCES);
    least.max(silence.saturating_add(deadline))
}

impl Nodes {
    /// Returns the volumes whose NodeVolumes have passed the deadline since the last call.
    pub(crate) fn stalled(&self) -> Vec<String> {
        let said = |status: &StorageNodeStatus| status.deadline_seconds;
        let said: BTreeMap<_, _> = self
            .all()
            .iter()
            .map(|(name, known)| (name.clone(), said(&known.status)))
            .collect();
        let of_node = |node: &str| longest(self.silence, said.get(node).copied().flatten());
        self.pending_calls().stalled(of_node)
    }

    /// Returns the volumes whose NodeVolumes have become late since the last call.
    pub(crate) fn late(&self) -> Vec<String> {
        self.pending_calls().late()
    }

    /// Returns the message for a NodeVolume that its node has not answered for longer than usual.
    pub(crate) fn why_late(&self, node_volume: &NodeVolume) -> Option<String> {
        let spec = &node_volume.spec;
        let name = node_volume.metadata.name.as_deref().unwrap_or_default();
        if !self.pending_calls().is_late(&spec.node, &spec.driver, name) {
            return None;
        }
        let all = self.all();
        let heard = all.get(&spec.node).map_or(LastHeartbeat::Never, |known| {
            LastHeartbeat::since(&known.status)
        });
        Some(format!(
            "node {} has not answered in {} s what was asked of it for the volume, and its agent {heard}; look whether that runs, and what the driver does",
            spec.node,
            LONG.as_secs()
        ))
    }

    /// Returns the message for a NodeVolume that has passed the deadline.
    pub(crate) fn stalls(&self, node_volume: &NodeVolume) -> Option<String> {
        let spec = &node_volume.spec;
        let said = self
            .all()
            .get(&spec.node)
            .map(|known| known.status.deadline_seconds);
        let longest = longest(self.silence, said.flatten());
        let name = node_volume.metadata.name.as_deref().unwrap_or_default();
        let calls = self.pending_calls();
        let stalls = calls.is_stalled(&spec.node, &spec.driver, name, longest);
        stalls.then(|| match spec.state {
            StorageState::Present => format!(
                "node {} has not made the volume in {} s, whatever it says; another node is asked",
                spec.node,
                longest.as_secs()
            ),
            StorageState::Absent => format!(
                "node {} was asked to delete the storage, and has not; look at its agent and its driver",
                spec.node
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::v1alpha1::StorageNode,
        placement::{SILENCE, tests::nodes},
    };
    use serde_json::{from_value, json};

    #[test]
    fn an_agent_that_does_not_tell_its_deadline_has_that_of_most() {
        let silence = Duration::from_secs(10);
        assert_eq!(longest(silence, None).as_secs(), 610);
        assert_eq!(longest(silence, Some(1)).as_secs(), 40);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_volume_is_not_taken_from_a_node_whose_driver_may_take_longer() {
        let seconds = |said: Option<u64>| {
            let nodes = nodes(&[]);
            let node = json!({
                "apiVersion": StorageNode::api_version(), "kind": "StorageNode", "metadata": {"name": "n"},
                "status": {"drivers": {"a/b": {}}, "lastHeartbeatTime": "12:00:00", "deadlineSeconds": said},
            });
            nodes.put(from_value(node).unwrap());
            let node_volume: NodeVolume = from_value(json!({
                "apiVersion": NodeVolume::api_version(), "kind": "NodeVolume",
                "metadata": {"name": "pvc-1", "generation": 1},
                "spec": {
                    "driver": "a/b", "node": "n", "state": "Present", "size": 2,
                    "claim": {"namespace": "ns", "name": "data", "uid": "1"},
                },
            }))
            .unwrap();
            nodes.node_volume_seen(&node_volume);
            async move {
                for waited in (0..).step_by(50) {
                    let stalled = nodes.stalled();
                    let told = nodes.stalls(&node_volume);
                    if told.is_some() {
                        assert_eq!(stalled, ["pvc-1"]);
                        return waited;
                    }
                    assert!(stalled.is_empty());
                    tokio::time::advance(Duration::from_secs(50)).await;
                }
                unreachable!("it is given up at some time")
            }
        };
        assert_eq!(SILENCE, Duration::from_secs(200));
        assert_eq!(seconds(None).await, 800);
        assert_eq!(seconds(Some(10)).await, 800);
        assert_eq!(seconds(Some(600)).await, 800, "as both are by default");
        assert_eq!(seconds(Some(1800)).await, 2000);
        assert_eq!(seconds(Some(u64::MAX / 2)).await, 3800, "it lies");
    }
}
