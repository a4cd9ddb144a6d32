//! Live reads of the state that decides about evictions.

#[cfg(test)]
mod tests;

use super::{
    TURN,
    eviction_decision::{Claim, Decision, Pod, Snapshot, State, WaitReason, decide},
};
use crate::{
    api::{
        v1alpha1::NodeVolume,
        well_known::{FILE_SYSTEM_RESIZE_PENDING, RESIZE_FAILED, REVISION},
    },
    claims::{self, Answer, StorageState},
    client::{Read, fields::page, paginate},
    drivers::ServedDrivers,
    events::{EventRecorder, EventType},
    k8s::{
        claim::{condition, failure, is_expanding, request},
        meta::uid,
        node::keeps_out,
        pod::{self, Toleration, claims_of, node_of, tolerations},
        stateful_set::ordinals,
    },
    observe::node_volume_of,
};
use anyhow::{Context, Result};
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{Node, PersistentVolumeClaim},
    },
    apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry,
    jiff::{SignedDuration, Timestamp},
};
use kube::{Api, Client, ResourceExt, api::ListParams, core::Selector};
use std::collections::HashMap;

/// Reads the set. Returns `None` if it is gone, or, with an event, if it was read in part.
pub(super) async fn read_set(
    client: &Client,
    events: &EventRecorder,
    namespace: &str,
    name: &str,
) -> Result<Option<StatefulSet>> {
    let sets: Api<Read<StatefulSet>> = Api::namespaced(client.clone(), namespace);
    let found = sets.get_opt(name).await.context("read the stateful set")?;
    let Some(Read {
        object: set,
        is_truncated,
    }) = found
    else {
        return Ok(None);
    };
    if is_truncated {
        let why = "the set is too large to be understood, so its claims are left alone; shorten its selector and its lists of templates and grow annotations";
        events.record(&set, EventType::Warning, RESIZE_FAILED, why);
    }
    Ok((!is_truncated).then_some(set))
}

/// Claims that were read, by name. Those without a need to grow have no value.
pub(super) type Claims = HashMap<String, Option<Claim>>;

/// The pods of a set, and what decides about the eviction of some of them. Nothing is read twice.
pub(super) struct Pods<'a> {
    client: &'a Client,
    ours: &'a ServedDrivers,
    set: &'a StatefulSet,
    all: Vec<Pod>,
    candidates: HashMap<i64, Candidate>,
    claims: Claims,
    /// Number of claims that this turn may still read.
    left: usize,
}

/// A pod that may be evicted.
struct Candidate {
    claims: Vec<String>,
    tolerated: Vec<Toleration>,
    node: Option<String>,
}

impl<'a> Pods<'a> {
    /// Lists the pods of the set, of which those with these ordinals may be evicted. Pods are read before claims: a
    /// running pod's volumes have grown, if necessary, and its claims tell that. `claims` were read in former turns.
    pub async fn list(
        client: &'a Client,
        ours: &'a ServedDrivers,
        set: &'a StatefulSet,
        ordinals: &[i64],
        claims: Claims,
    ) -> Result<Self> {
        let namespace = set.namespace().unwrap_or_default();
        let pods: Api<pod::Pod> = Api::namespaced(client.clone(), &namespace);
        let selector = Selector::try_from(set.spec.selector.clone());
        let pages = ListParams::default()
            .labels_from(&selector.context("read what the set selects")?)
            .limit(page::<pod::Pod>());
        let (mut all, mut candidates) = (Vec::new(), HashMap::new());
        let now = Timestamp::now();
        let listed = paginate::each(&pods, pages, |pod| {
            let Some(pod_of_set) = pod_of(set, pod, now) else {
                return;
            };
            if ordinals.contains(&pod_of_set.ordinal) {
                let mut claims = claims_of(pod);
                claims.sort_unstable();
                claims.dedup();
                let candidate = Candidate {
                    claims,
                    tolerated: tolerations(pod),
                    node: node_of(pod).map(str::to_owned),
                };
                candidates.insert(pod_of_set.ordinal, candidate);
            }
            all.push(pod_of_set);
        });
        listed.await.context("list pods")?;
        Ok(Pods {
            client,
            ours,
            set,
            all,
            candidates,
            claims,
            left: TURN,
        })
    }

    /// Lets this turn read any number of claims.
    pub fn without_limit(mut self) -> Self {
        self.left = usize::MAX;
        self
    }

    /// The claims of one of those pods that were read.
    pub fn into_claims(mut self, ordinal: i64) -> Claims {
        let candidate = self.candidates.get(&ordinal);
        let names = candidate.map_or(&[][..], |candidate| &candidate.claims);
        self.claims
            .retain(|name, _| names.binary_search(name).is_ok());
        self.claims
    }

    /// Reads what decides about one of those pods, and no more: nothing if other pods decide, and no claim after one
    /// whose storage has to grow first. Returns `None` if it has more claims than this turn may read.
    pub async fn snapshot(&mut self, last: i64) -> Result<Option<Snapshot>> {
        let mut seen = Snapshot {
            rolls: rolls(self.set, &self.all),
            ordinals: ordinals(self.set),
            pods: self.all.clone(),
            last,
            claims: Vec::new(),
            kept_out: None,
        };
        if decide(&seen, Timestamp::now()) != Decision::Wait(WaitReason::Nothing) {
            return Ok(Some(seen));
        }
        let Some(candidate) = self.candidates.get(&last) else {
            return Ok(Some(seen));
        };
        for name in &candidate.claims {
            let claim = match self.claims.get(name) {
                Some(known) => known.clone(),
                None if self.left == 0 => return Ok(None),
                None => {
                    self.left -= 1;
                    let read = growing(self.client, self.ours, self.set, name).await?;
                    self.claims.insert(name.clone(), read.clone());
                    read
                }
            };
            let waits_for_storage = claim.as_ref().is_some_and(|claim| claim.pending.is_none());
            seen.claims.extend(claim);
            if waits_for_storage {
                return Ok(Some(seen));
            }
        }
        if let Some(node) = candidate.node.as_ref().filter(|_| !seen.claims.is_empty()) {
            let nodes: Api<Read<Node>> = Api::all(self.client.clone());
            let found = nodes.get_opt(node).await.context("read a node")?;
            let why = keeps_out(found.as_ref(), &candidate.tolerated);
            seen.kept_out = why.map(|why| format!("node {node} {why}"));
        }
        if let Decision::Evict { uid, .. } = decide(&seen, Timestamp::now()) {
            seen.kept_out = self.other_user(&uid, candidate, &seen.claims).await?;
        }
        Ok(Some(seen))
    }

    /// Says which other pod on a candidate's node uses one of its growing claims. While it does, the volume does not
    /// grow, and kubelet does not start the replacement.
    async fn other_user(
        &self,
        uid: &str,
        candidate: &Candidate,
        growing: &[Claim],
    ) -> Result<Option<String>> {
        let namespace = self.set.namespace().unwrap_or_default();
        let pods: Api<pod::Pod> = Api::namespaced(self.client.clone(), &namespace);
        let pages = ListParams::default().limit(page::<pod::Pod>());
        let mut other = None;
        let listed = paginate::each(&pods, pages, |pod| {
            let is_node = |node| candidate.node.as_deref() == Some(node);
            // Of a truncated pod the node's name may not have been read.
            let is_there = node_of(pod).map_or(pod.is_truncated, is_node);
            if pod.metadata.uid.as_deref() == Some(uid) || pod::has_ended(pod) || !is_there {
                return;
            }
            let (name, used) = (pod.name_any(), claims_of(pod));
            let shared = growing.iter().find(|claim| used.contains(&claim.name));
            let what = match shared {
                Some(claim) => format!("on its node uses claim {} too, so end that first", claim.name),
                None if pod.is_truncated => "is too large to be understood, and may use its claims too; shorten its list of volumes".to_owned(),
                None => return,
            };
            other = Some(format!("pod {name} {what}"));
        });
        listed.await.context("list the pods of the namespace")?;
        Ok(other)
    }
}

/// Reads a claim, and returns it if it has to grow.
async fn growing(
    client: &Client,
    ours: &ServedDrivers,
    set: &StatefulSet,
    name: &str,
) -> Result<Option<Claim>> {
    let namespace = set.namespace().unwrap_or_default();
    let claims: Api<Read<PersistentVolumeClaim>> = Api::namespaced(client.clone(), &namespace);
    let Some(Read {
        object: claim,
        is_truncated,
    }) = claims.get_opt(name).await.context("read a claim")?
    else {
        return Ok(None);
    };
    if !is_truncated && !is_expanding(&claim) {
        return Ok(None);
    }
    let mut growing = Claim {
        name: name.to_owned(),
        pending: None,
        written: None,
        stored: None,
        has_eviction: false,
    };
    // A claim that was read in part may have to grow, and may be unable to.
    let Some(since) = waits_since(&claim).filter(|_| !is_truncated) else {
        return Ok(Some(growing));
    };
    let node_volumes: Api<NodeVolume> = Api::all(client.clone());
    let volume = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_name.as_deref());
    let node_volume = node_volumes.get_opt(volume.unwrap_or_default()).await;
    let node_volume = node_volume.context("read the NodeVolume")?;
    let reduced = node_volume
        .as_ref()
        .map(|node_volume| node_volume_of(node_volume, ours));
    growing.pending = Some(since).filter(|_| has_storage(&claim, reduced.as_ref()));
    growing.written = status_written(&claim);
    growing.stored = node_volume.as_ref().and_then(written);
    Ok(Some(growing))
}

/// Since when only the file system of a growing claim has to grow, by the claim's own condition.
fn waits_since(claim: &PersistentVolumeClaim) -> Option<Timestamp> {
    let condition = condition(claim, FILE_SYSTEM_RESIZE_PENDING)?;
    let since = condition.last_transition_time.as_ref();
    let since = since.map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    failure(claim).is_none().then_some(since)
}

/// When the status of a claim was last written by others than kubelet, who writes after the condition.
fn status_written(claim: &PersistentVolumeClaim) -> Option<Timestamp> {
    let writers = claim.metadata.managed_fields.iter().flatten();
    let of_status = writers.filter(|writer| {
        writer.subresource.as_deref() == Some("status")
            && writer.manager.as_deref() != Some("kubelet")
    });
    last_write(of_status)
}

/// Whether a claim's storage has the size that was asked for. Without a NodeVolume of ours, the claim's own condition
/// is believed.
fn has_storage(claim: &PersistentVolumeClaim, node_volume: Option<&claims::NodeVolume>) -> bool {
    let Some(Ok(asked)) = claim.spec.as_ref().map(request) else {
        return false;
    };
    node_volume.is_none_or(|node_volume| {
        let reached = match node_volume.answer {
            Answer::Present(size) => size.is_none_or(|size| size >= asked),
            Answer::None | Answer::Absent => false,
        };
        reached && node_volume.desired == StorageState::Present && node_volume.problem.is_none()
    })
}

/// When a NodeVolume or its answer was last written. What the answer reports had been reached by then.
fn written(node_volume: &NodeVolume) -> Option<Timestamp> {
    last_write(node_volume.metadata.managed_fields.iter().flatten())
}

/// The API server's time of the last write by one of these.
fn last_write<'a>(writers: impl Iterator<Item = &'a ManagedFieldsEntry>) -> Option<Timestamp> {
    let times = writers.filter_map(|writer| Some(writer.time.as_ref()?.0));
    times.max()
}

/// Reduces a pod, if it belongs to the set.
fn pod_of(set: &StatefulSet, pod: &pod::Pod, now: Timestamp) -> Option<Pod> {
    let meta = &pod.metadata;
    let owners = meta.owner_references.iter().flatten();
    let mut owners = owners.filter(|owner| owner.controller == Some(true));
    // The owner may be in the unread part.
    if !pod.is_truncated && !owners.any(|owner| owner.uid == uid(&set.metadata)) {
        return None;
    }
    let name = meta.name.clone()?;
    let ordinal = name.strip_prefix(&format!("{}-", set.name_any()))?;
    let phase = pod.status.phase.as_deref();
    let state = if pod.is_truncated {
        State::Unknown
    } else if meta.deletion_timestamp.is_some() {
        State::Going
    } else if is_available(set, pod, now) {
        State::Ready
    } else if phase.is_none_or(|phase| phase == "Pending") && !pod::has_run(pod) {
        State::Starting
    } else {
        State::Unready
    };
    let ordinal = ordinal.parse().ok()?;
    let labels = meta.labels.as_ref();
    let revision = labels.and_then(|labels| labels.get(REVISION));
    Some(Pod {
        ordinal,
        comes_back: revision.is_some() && revision == revision_of_next(set, ordinal),
        uid: uid(meta).to_owned(),
        made: meta.creation_timestamp.as_ref()?.0,
        state,
        name,
    })
}

/// Whether a pod has been ready for the set's `minReadySeconds` (`IsPodAvailable` in `pkg/api/v1/pod`).
fn is_available(set: &StatefulSet, pod: &pod::Pod, now: Timestamp) -> bool {
    let mut conditions = pod.status.conditions.iter().flatten();
    let ready = conditions.find(|each| each.type_ == "Ready" && each.status == "True");
    let least = SignedDuration::from_secs(set.spec.min_ready_seconds.unwrap_or(0).into());
    ready.is_some_and(|ready| {
        let since = ready.last_transition_time.as_ref();
        least.is_zero() || since.is_some_and(|since| now.duration_since(since.0) >= least)
    })
}

/// The template's revision of a pod that would be created now (`newVersionedStatefulSetPod` in
/// `pkg/controller/statefulset/stateful_set_utils.go`): the current one below a rollout's partition, and
/// otherwise the updated one, whether or not the rollout replaces other pods.
fn revision_of_next(set: &StatefulSet, ordinal: i64) -> Option<&String> {
    let status = set.status.as_ref()?;
    if ordinal < first_of_rollout(set) {
        status.current_revision.as_ref()
    } else {
        status.update_revision.as_ref()
    }
}

/// The first ordinal that a rolling update replaces.
fn first_of_rollout(set: &StatefulSet) -> i64 {
    ordinals(set).start.saturating_add(partition(set))
}

fn partition(set: &StatefulSet) -> i64 {
    let strategy = set.spec.update_strategy.as_ref();
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let partition = rolling.and_then(|rolling| rolling.partition);
    i64::from(partition.unwrap_or(0))
}

/// Whether the set's controller has not observed the current generation yet, or is rolling out a newer revision.
fn rolls(set: &StatefulSet, pods: &[Pod]) -> bool {
    let Some(status) = &set.status else {
        return true;
    };
    let strategy = set.spec.update_strategy.as_ref();
    let by_hand = strategy.is_some_and(|strategy| strategy.type_.as_deref() == Some("OnDelete"));
    let to_update = i64::from(set.spec.replicas.unwrap_or(1)).saturating_sub(partition(set));
    let replaced = |pod: &Pod| pod.ordinal >= first_of_rollout(set) && !pod.comes_back;
    let updating = status.current_revision != status.update_revision
        && (i64::from(status.updated_replicas.unwrap_or(0)) < to_update
            || pods.iter().any(replaced));
    status.observed_generation < set.metadata.generation || updating && !by_hand
}
