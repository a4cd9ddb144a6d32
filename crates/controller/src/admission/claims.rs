//! Claims that shall grow.
//!
//! Kubernetes itself refuses to shrink them, and to grow those whose class does not allow it
//! (`plugin/pkg/admission/storage/persistentvolume/resize`). Refused here is what it does not know:
//! more than the class, the node or the driver can give.

use super::review::{Update, Verdict};
use crate::{
    api::{
        v1alpha1::{NodeVolume, NodeVolumeStatus, StorageNode, StorageNodeStatus, StorageState},
        well_known::{NODE_ANNOTATION, is_object_name},
    },
    drivers::ServedDrivers,
    k8s::{
        claim::{capacity, class_name, request},
        class::beyond,
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

/// What is known of a claim that shall grow.
#[derive(Clone, Debug, Default)]
struct Expansion {
    asked: Bytes,
    /// What it has, as far as is known.
    has: Bytes,
    driver: String,
    class: Option<StorageClass>,
    node_volume: Option<NodeVolume>,
    /// The node that has the storage, and what its agent says of it.
    node: Option<(String, StorageNodeStatus)>,
    /// How long nothing was heard of that agent, if that is too long: what it said may be over.
    silence: Option<LastHeartbeat>,
}

/// Judges an update of a claim. Agents count as away after `longest`.
///
/// # Errors
/// When what has to be known cannot be read.
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
    // Kubernetes lets only bound claims grow.
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
        .and_then(|(_, status)| LastHeartbeat::told(status, now, longest));
    let expansion = Expansion {
        asked,
        has: capacity(&update.old),
        driver: driver.to_owned(),
        class,
        node_volume,
        node,
        silence,
    };
    Ok(expansion.verdict())
}

/// The size that is asked for, if it is more than before.
fn expansion(update: &Update<PersistentVolumeClaim>) -> Option<Bytes> {
    let size = |claim: &PersistentVolumeClaim| request(claim.spec.as_ref()?).ok();
    let asked = size(&update.new)?;
    let leaves = update.new.metadata.deletion_timestamp.is_some();
    (!leaves && asked > size(&update.old).unwrap_or_default()).then_some(asked)
}

impl Expansion {
    fn verdict(&self) -> Verdict {
        let why = self.beyond_class().or_else(|| self.beyond_driver());
        match why.or_else(|| self.beyond_node()) {
            Some(why) => Verdict::refused(why),
            None => self
                .silent_node()
                .map_or_else(Verdict::allowed, Verdict::warned),
        }
    }

    fn beyond_class(&self) -> Option<String> {
        let class = self.class.as_ref()?;
        beyond(class, self.asked)
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
        // Classes are deleted and made anew, and then another pool's room is told under the same name.
        let parameters = class.parameters.clone().unwrap_or_default();
        if node_volume.is_some_and(|node_volume| node_volume.spec.parameters != parameters) {
            return None;
        }
        let room = Bytes(*status.capacities.get(class.metadata.name.as_deref()?)?);
        let status = node_volume.and_then(|node_volume| node_volume.status.as_ref());
        let measured = status.and_then(|answer| answer.size).map(Bytes);
        let has = self.has.max(measured.unwrap_or_default());
        let more = Bytes(self.asked.0.saturating_sub(has.0));
        // As people write sizes.
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

/// A driver that has storage, tells no size of it, and wants no call on the node is never called.
fn tells_nothing(answer: &NodeVolumeStatus) -> bool {
    answer.state == Some(StorageState::Present)
        && answer.size.is_none()
        && !answer.node_expansion_required
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::well_known::LARGEST;
    use proptest::prelude::*;
    use serde_json::{Value, from_value, json};

    const GIB: u64 = 1 << 30;

    fn class(largest: Option<&str>) -> StorageClass {
        let annotations = largest.map(|size| json!({LARGEST: size}));
        from_value(json!({
            "metadata": {"name": "disk", "annotations": annotations},
            "provisioner": "example.com/disk",
        }))
        .unwrap()
    }

    fn node_volume(size: u64, status: Value) -> NodeVolume {
        from_value(json!({
            "apiVersion": "flexvol.dev/v1alpha1", "kind": "NodeVolume",
            "metadata": {"name": "pvc-1", "generation": 3},
            "spec": {
                "driver": "example.com/disk", "node": "n", "state": "Present", "size": size,
                "claim": {"namespace": "default", "name": "data", "uid": "1"},
            },
            "status": status,
        }))
        .unwrap()
    }

    fn node(room: Option<u64>) -> (String, StorageNodeStatus) {
        let capacities = room.map(|room| ("disk".to_owned(), room));
        let status = StorageNodeStatus {
            drivers: [("example.com/disk".to_owned(), Default::default())].into(),
            capacities: capacities.into_iter().collect(),
            last_heartbeat_time: None,
            ..StorageNodeStatus::default()
        };
        ("n".to_owned(), status)
    }

    fn asked(size: u64) -> Expansion {
        Expansion {
            asked: Bytes(size),
            has: Bytes(GIB),
            driver: "example.com/disk".to_owned(),
            class: Some(class(None)),
            node_volume: Some(node_volume(GIB, json!({"state": "Present", "size": GIB}))),
            node: Some(node(Some(4 * GIB))),
            silence: None,
        }
    }

    #[test]
    fn what_cannot_be_had_is_refused_with_what_can() {
        assert_eq!(asked(5 * GIB).verdict(), Verdict::allowed());
        let refused = |expansion: Expansion| expansion.verdict().refusal.unwrap();
        let why = refused(asked(6 * GIB));
        assert!(why.contains("ask for at most 5Gi"), "{why}");
        let limited = Expansion {
            class: Some(class(Some("2Gi"))),
            ..asked(3 * GIB)
        };
        let why = refused(limited);
        assert!(why.contains("at most 2Gi"), "{why}");
        let fixed = json!({"state": "Present", "nodeExpansionRequired": false});
        let fixed = Expansion {
            node_volume: Some(node_volume(GIB, fixed)),
            ..asked(2 * GIB)
        };
        let why = refused(fixed);
        assert!(why.contains("make a claim of the size you need"), "{why}");
        let mistaken = Expansion {
            class: Some(class(Some("large"))),
            ..asked(2 * GIB)
        };
        assert!(refused(mistaken).contains("mend it"));
    }

    #[test]
    fn the_room_of_the_pool_that_a_class_names_now_says_nothing_of_volumes_of_another_one() {
        let full = |pool: &str| {
            let mut expansion = asked(2 * GIB);
            let parameters = |pool: &str| [("pool".to_owned(), pool.to_owned())].into();
            expansion.node_volume.as_mut().unwrap().spec.parameters = parameters("slow");
            expansion.class.as_mut().unwrap().parameters = Some(parameters(pool));
            expansion.node = Some(node(Some(0)));
            expansion.verdict().refusal
        };
        assert!(full("slow").is_some());
        assert_eq!(full("fast"), None);
    }

    #[test]
    fn more_than_a_driver_has_just_refused_is_not_tried_and_less_is() {
        let failed = |generation: u64, class: &str| {
            json!({
                "state": "Present", "size": GIB, "observedGeneration": generation, "failures": 1,
                "error": {"class": class, "message": "the pool ends at 2Gi"},
            })
        };
        let after = |size: u64, status: Value| {
            let expansion = Expansion {
                node_volume: Some(node_volume(3 * GIB, status)),
                ..asked(size)
            };
            expansion.verdict().refusal
        };
        let why = after(4 * GIB, failed(3, "infeasible")).unwrap();
        assert!(
            why.contains("the pool ends at 2Gi; ask for less than that"),
            "{why}"
        );
        assert_eq!(after(2 * GIB, failed(3, "infeasible")), None);
        // It may be another time, and the answer to another request says nothing.
        assert_eq!(after(4 * GIB, failed(3, "retryable")), None);
        assert_eq!(after(4 * GIB, failed(2, "infeasible")), None);
    }

    #[test]
    fn a_driver_that_does_not_answer_is_told_and_hinders_nobody() {
        let mut expansion = asked(2 * GIB);
        expansion.node.as_mut().unwrap().1.drivers.clear();
        let verdict = expansion.verdict();
        assert_eq!(verdict.refusal, None);
        assert!(verdict.warnings[0].contains("does not answer on node n"));
    }

    #[test]
    fn what_a_silent_agent_said_refuses_nothing() {
        let silent = Expansion {
            silence: Some(LastHeartbeat::Since("12:00".to_owned())),
            ..asked(6 * GIB)
        };
        let verdict = silent.verdict();
        assert_eq!(verdict.refusal, None);
        let warning = &verdict.warnings[0];
        assert!(warning.contains("was last heard of at 12:00"), "{warning}");
    }

    #[test]
    fn what_nobody_tells_of_passes() {
        let nothing = Expansion {
            asked: Bytes(u64::MAX),
            ..Expansion::default()
        };
        assert_eq!(nothing.verdict(), Verdict::allowed());
        let roomless = Expansion {
            node: Some(node(None)),
            ..asked(6 * GIB)
        };
        assert_eq!(roomless.verdict(), Verdict::allowed());
    }

    fn claim(size: u64) -> PersistentVolumeClaim {
        let size = Bytes(size).to_string();
        from_value(json!({"spec": {"resources": {"requests": {"storage": size}}}})).unwrap()
    }

    proptest! {
        #[test]
        fn a_size_that_passes_passes_also_if_less_is_asked_for(
            size in GIB..9 * GIB, room in 0..9 * GIB, largest in GIB..9 * GIB, less in 0..GIB,
        ) {
            let expansion = |asked_for: u64| Expansion {
                class: Some(class(Some(&largest.to_string()))),
                node: Some(node(Some(room))),
                ..asked(asked_for)
            };
            if expansion(size).verdict().refusal.is_none() {
                prop_assert!(expansion(size - less).verdict().refusal.is_none());
                prop_assert!(size <= largest && size - GIB <= room);
            }
        }

        #[test]
        fn only_more_than_before_is_growth(old in 1..u64::from(u32::MAX), new in 1..u64::from(u32::MAX)) {
            let update = Update { uid: String::new(), new: claim(new), old: claim(old) };
            prop_assert_eq!(expansion(&update), (new > old).then_some(Bytes(new)));
        }
    }
}
