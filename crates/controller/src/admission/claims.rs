//! Admission of claims' expansions.
//!
//! Kubernetes itself rejects a smaller request, and expansion if the class does not allow it
//! (`plugin/pkg/admission/storage/persistentvolume/resize`). This webhook rejects requests that exceed the limits of
//! the class, the node or the driver, which Kubernetes does not know.

#[cfg(test)]
mod tests;

use super::review::{Update, Verdict};
use crate::{
    api::{
        v1alpha1::{NodeVolume, NodeVolumeStatus, StorageNode, StorageNodeStatus, StorageState},
        well_known::{NODE_ANNOTATION, is_object_name},
    },
    drivers::ServedDrivers,
    k8s::{
        claim::{asked, capacity, class_name, uncountable_reason},
        class::limit_violation,
        volume::driver_of,
    },
    placement::LastHeartbeat,
};
use anyhow::{Context, Result};
use flexvol_sdk::{Bytes, ErrorClass};
use k8s_openapi::{
    api::{
        core::v1::{PersistentVolume, PersistentVolumeClaim},
        storage::v1::StorageClass,
    },
    jiff::Timestamp,
};
use kube::{Api, Client};
use std::time::Duration;

/// State of an expansion.
#[derive(Clone, Debug, Default)]
struct Expansion {
    asked: Bytes,
    /// Why the request exceeds what Kubernetes counts.
    uncountable_reason: Option<String>,
    /// The capacity in the claim's status.
    has: Bytes,
    driver: String,
    class: Option<StorageClass>,
    node_volume: Option<NodeVolume>,
    /// The node that has the storage, and its agent's report.
    node: Option<(String, StorageNodeStatus)>,
    /// The last heartbeat of a silent agent. Its report may be outdated.
    silence: Option<LastHeartbeat>,
}

/// Reviews an update of a claim. Agents count as silent after `longest`.
///
/// # Errors
/// When an object cannot be read.
pub async fn judge(
    client: &Client,
    ours: &ServedDrivers,
    longest: Duration,
    update: &Update<PersistentVolumeClaim>,
) -> Result<Verdict> {
    let Some(asked) = expansion(update) else {
        return Ok(Verdict::allowed());
    };
    let spec = update.new.spec.clone().unwrap_or_default();
    let uncountable_reason = uncountable_reason(&spec);
    // Kubernetes allows only bound claims to grow.
    let Some(name) = spec.volume_name.filter(|name| is_object_name(name)) else {
        return Ok(Verdict::allowed());
    };
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let volume = volumes.get_opt(&name).await.context("read the volume")?;
    let Some(volume) = volume else {
        return Ok(Verdict::allowed());
    };
    let Some(driver) = driver_of(&volume).filter(|driver| ours.has(driver)) else {
        return Ok(Verdict::allowed());
    };
    let class = async {
        let Some(class) = class_name(&update.new).filter(|name| is_object_name(name)) else {
            return Ok(None);
        };
        let classes: Api<StorageClass> = Api::all(client.clone());
        classes.get_opt(class).await
    };
    let node = async {
        let annotations = volume.metadata.annotations.as_ref();
        let Some(name) = annotations.and_then(|all| all.get(NODE_ANNOTATION)) else {
            return Ok(None);
        };
        let nodes: Api<StorageNode> = Api::all(client.clone());
        let node = nodes.get_opt(name).await?;
        Ok(node.map(|node| (name.clone(), node.status)))
    };
    let node_volumes: Api<NodeVolume> = Api::all(client.clone());
    let (class, node_volume, node) = tokio::try_join!(class, node_volumes.get_opt(&name), node)
        .context("read class, NodeVolume and node")?;
    let now = Timestamp::now();
    let silence = node
        .as_ref()
        .and_then(|(_, status)| LastHeartbeat::older_than(status, now, longest));
    let expansion = Expansion {
        asked,
        uncountable_reason,
        has: capacity(&update.old),
        driver: driver.to_owned(),
        class,
        node_volume,
        node,
        silence,
    };
    Ok(expansion.verdict())
}

/// Returns the requested size if it is larger than before.
fn expansion(update: &Update<PersistentVolumeClaim>) -> Option<Bytes> {
    let size = asked(&update.new);
    let leaves = update.new.metadata.deletion_timestamp.is_some();
    (!leaves && size > asked(&update.old)).then_some(size)
}

impl Expansion {
    fn verdict(&self) -> Verdict {
        let why = self
            .uncountable_reason
            .clone()
            .or_else(|| self.class_limit_violation());
        let why = why.or_else(|| self.beyond_driver());
        match why.or_else(|| self.beyond_node()) {
            Some(why) => Verdict::refused(why),
            None => self
                .silent_node()
                .map_or_else(Verdict::allowed, Verdict::warned),
        }
    }

    fn class_limit_violation(&self) -> Option<String> {
        let class = self.class.as_ref()?;
        limit_violation(class, self.asked)
    }

    fn beyond_driver(&self) -> Option<String> {
        let node_volume = self.node_volume.as_ref()?;
        let answer = node_volume.status.clone().unwrap_or_default();
        if tells_nothing(&answer) {
            return Some(format!(
                "driver {} tells no sizes and says requiresFSResize: false, so nobody can grow this volume; make a claim of the size you need",
                self.driver
            ));
        }
        let current = Some(answer.observed_generation) == node_volume.metadata.generation;
        let problem = answer.error.filter(|_| current)?;
        let tried = Bytes(node_volume.spec.size);
        let hopeless =
            problem.class() == ErrorClass::Infeasible && tried > self.has && self.asked > tried;
        hopeless.then(|| {
            format!(
                "the volume cannot even have {tried}, which was asked for before: {}; ask for less than that",
                problem.message
            )
        })
    }

    fn beyond_node(&self) -> Option<String> {
        if self.silence.is_some() {
            return None;
        }
        let (node, status) = self.node.as_ref()?;
        let (class, node_volume) = (self.class.as_ref()?, self.node_volume.as_ref());
        // The class may have been recreated, and then its capacity is of another pool. A NodeVolume that was recreated
        // has no parameters.
        let parameters = class.parameters.clone().unwrap_or_default();
        let ordered = node_volume.filter(|node_volume| node_volume.spec.source.is_none());
        if ordered.is_some_and(|node_volume| node_volume.spec.parameters != parameters) {
            return None;
        }
        // Zero is no limit: a pool that is full for new volumes may let existing ones grow.
        let room = status.capacities.get(class.metadata.name.as_deref()?);
        let room = Bytes(*room.filter(|room| **room > 0)?);
        let status = node_volume.and_then(|node_volume| node_volume.status.as_ref());
        let measured = status.and_then(|answer| answer.size).map(Bytes);
        let has = self.has.max(measured.unwrap_or_default());
        let more = Bytes(self.asked.0.saturating_sub(has.0));
        // Rounded down to mebibytes.
        let most = Bytes(has.0.saturating_add(room.0) >> 20 << 20);
        (more > room).then(|| {
            format!(
                "the volume has {has}, and node {node}, where it is, has no room for {more} more; ask for at most {most}, or make room there"
            )
        })
    }

    fn silent_node(&self) -> Option<String> {
        let (node, status) = self.node.as_ref()?;
        if let Some(silence) = &self.silence {
            return Some(format!(
                "the agent of node {node}, where the volume is, {silence}; the volume grows when it is back"
            ));
        }
        let answers = status.drivers.contains_key(&self.driver);
        (!answers).then(|| {
            format!(
                "driver {} does not answer on node {node}, where the volume is; it grows when it does",
                self.driver
            )
        })
    }
}

/// Whether the driver is never called: it has made the storage, reports no size, and needs no growth on the node.
fn tells_nothing(answer: &NodeVolumeStatus) -> bool {
    answer.state == Some(StorageState::Present)
        && answer.size.is_none()
        && !answer.node_expansion_required
}
