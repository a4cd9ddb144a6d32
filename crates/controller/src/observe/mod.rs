//! Live reads of one volume's objects from the API server.

mod node_volumes;
pub(crate) mod provisioning;
#[cfg(test)]
mod tests;

pub(crate) use node_volumes::node_volume_of;

use crate::{
    api::{
        v1alpha1::{ClaimReference, NodeVolume, VolumeError},
        well_known::{CLAIM_FINALIZER, NODE_ANNOTATION, VOLUME_FINALIZER, claim_uid, volume_name},
    },
    claims::{self, Binding, Observed, Reclaim, UnavailableNode},
    client::Read,
    drivers::ServedDrivers,
    k8s::{
        claim::{
            self, allocated, capacity, failure, file_system_resize_pending, is_bound, is_expanding,
        },
        class,
        meta::{has_finalizer, storage, uid},
        volume::{claimed_by, is_ours, lost_its_claim},
    },
};
use anyhow::{Context, Result};
use flexvol_sdk::{Bytes, ErrorClass};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{Api, Client};
use node_volumes::{PERSISTENT_AFTER, rejected};
use std::collections::BTreeMap;

/// The objects of one volume.
#[derive(Clone, Debug, Default)]
pub struct VolumeObjects {
    /// The claim that has the persistent volume, or, before that exists, the claim after which it is named.
    pub claim: Option<PersistentVolumeClaim>,
    /// Whether the claim was read in part.
    pub claim_is_truncated: bool,
    /// Whether the API server drops allocated sizes of claims. Set by the caller.
    pub drops_allocated: bool,
    /// The persistent volume of that name.
    pub volume: Option<PersistentVolume>,
    /// The NodeVolume of that name.
    pub node_volume: Option<NodeVolume>,
    /// The claim's class.
    pub class: Option<StorageClass>,
    /// Why the node that has to act is unavailable. Set by the caller.
    pub unavailable: Option<UnavailableNode>,
    /// The hostname to which volumes of the NodeVolume's node are bound, or why that is impossible. Set by the caller.
    pub hostname: Option<Result<String, String>>,
    /// The message if the NodeVolume has made no progress for too long. Set by the caller.
    pub stalled: Option<String>,
    /// The message if its node has not begun for longer than usual. Set by the caller.
    pub late: Option<String>,
}

/// Reads a volume's objects. `claim` is the last known place of the claim after which the volume is named, used if no
/// object tells it. A volume that outlived its claim, with reclaim policy Retain, may be for another claim.
///
/// # Errors
/// When the API server does not answer.
pub async fn read(
    client: &Client,
    name: &str,
    claim: Option<(String, String)>,
    ours: &ServedDrivers,
) -> Result<VolumeObjects> {
    let node_volumes: Api<NodeVolume> = Api::all(client.clone());
    let node_volume = node_volumes.get_opt(name).await;
    let node_volume = node_volume.context("read the NodeVolume")?;
    read_with(client, name, node_volume, claim, ours).await
}

/// Like [`read`], with a NodeVolume that was just read.
///
/// # Errors
/// When the API server does not answer.
pub(crate) async fn read_with(
    client: &Client,
    name: &str,
    node_volume: Option<NodeVolume>,
    claim: Option<(String, String)>,
    ours: &ServedDrivers,
) -> Result<VolumeObjects> {
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let volume = volumes.get_opt(name).await;
    let volume = volume.context("read the persistent volume")?;
    let place = volume
        .as_ref()
        .filter(|volume| is_ours(volume, ours))
        .and_then(claimed_by)
        .or_else(|| {
            let place = claim.or_else(|| {
                node_volume
                    .as_ref()
                    .map(|node_volume| named(&node_volume.spec.claim))
            })?;
            Some((place, claim_uid(name).to_owned()))
        });
    let mut live = VolumeObjects {
        volume,
        node_volume,
        ..VolumeObjects::default()
    };
    if let Some((place, uid)) = place {
        live.put_claim(read_claim(client, &uid, &place).await?);
    }
    if let Some(claim) = &live.claim
        && needs_class(claim, live.node_volume.as_ref(), ours)
        && let Some(class) = claim::class_name(claim)
    {
        let classes: Api<StorageClass> = Api::all(client.clone());
        live.class = classes
            .get_opt(class)
            .await
            .context("read the storage class")?;
    }
    Ok(live)
}

/// Reads the claim of this namespace and name, if it has this UID.
///
/// # Errors
/// When the API server does not answer.
pub(crate) async fn read_claim(
    client: &Client,
    uid: &str,
    (namespace, name): &(String, String),
) -> Result<Option<Read<PersistentVolumeClaim>>> {
    let claims: Api<Read<PersistentVolumeClaim>> = Api::namespaced(client.clone(), namespace);
    let found = claims.get_opt(name).await.context("read the claim")?;
    // A later claim of the same name is another volume's.
    Ok(found.filter(|claim| self::uid(&claim.object.metadata) == uid))
}

fn named(claim: &ClaimReference) -> (String, String) {
    (claim.namespace.clone(), claim.name.clone())
}

fn needs_class(
    claim: &PersistentVolumeClaim,
    node_volume: Option<&NodeVolume>,
    ours: &ServedDrivers,
) -> bool {
    // A claim without a class is refused.
    let waits = matches!(
        provisioning::wish(claim, None, ours),
        claims::Wish::Refused(_)
    );
    // The NodeVolume may order more although the claim does not expand.
    let is_ordered =
        node_volume.is_some_and(|node_volume| capacity(claim) <= Bytes(node_volume.spec.size));
    waits || node_volume.is_none() || is_bound(claim) && (is_expanding(claim) || !is_ordered)
}

impl VolumeObjects {
    /// Sets the claim after it was read or written.
    pub(crate) fn put_claim(&mut self, claim: Option<Read<PersistentVolumeClaim>>) {
        self.claim_is_truncated = claim.as_ref().is_some_and(|claim| claim.is_truncated);
        self.claim = claim.map(|claim| claim.object);
    }

    /// Returns the names of the volume and of its claim, as far as they are known.
    pub(crate) fn names(&self) -> (String, String) {
        let volume = self.volume.as_ref().map(|volume| &volume.metadata);
        let node_volume = self
            .node_volume
            .as_ref()
            .map(|node_volume| &node_volume.metadata);
        let named = volume.or(node_volume).and_then(|meta| meta.name.clone());
        let of_claim = self.claim.as_ref().map(|claim| &claim.metadata);
        let named = named.or_else(|| of_claim.map(|meta| volume_name(uid(meta))));
        let place = of_claim
            .and_then(|meta| Some((meta.namespace.clone()?, meta.name.clone()?)))
            .or_else(|| {
                self.node_volume
                    .as_ref()
                    .map(|node_volume| self::named(&node_volume.spec.claim))
            });
        let claim = place.map(|(namespace, name)| format!("{namespace}/{name}"));
        (named.unwrap_or_default(), claim.unwrap_or_default())
    }

    /// Returns the node, class and size that were ordered. Returns `None` if the class was recreated with other
    /// parameters, because nothing was ordered of the new class.
    pub(crate) fn requested_placement(&self) -> Option<(&str, &str, Bytes)> {
        let (node_volume, class) = (self.node_volume.as_ref()?, self.class.as_ref()?);
        if !has_parameters(node_volume, class) {
            return None;
        }
        let class = class.metadata.name.as_deref()?;
        Some((&node_volume.spec.node, class, Bytes(node_volume.spec.size)))
    }

    /// Whether the claim's class, if it was read, has another driver or other parameters than the NodeVolume.
    fn class_differs(&self, node_volume: &NodeVolume, ours: &ServedDrivers) -> bool {
        self.class.as_ref().is_some_and(|class| {
            let driver = ours.driver_of(&class.provisioner);
            driver != Some(&*node_volume.spec.driver) || !has_parameters(node_volume, class)
        })
    }

    /// Whether the node lacked capacity for the volume.
    pub(crate) fn is_exhausted(&self) -> bool {
        let status = self
            .node_volume
            .as_ref()
            .and_then(|node_volume| node_volume.status.as_ref());
        let problem = status.and_then(|status| status.error.as_ref());
        problem.is_some_and(|problem| problem.class() == ErrorClass::Exhausted)
    }

    /// Returns the node's problem, if it has occurred so often that another node is tried.
    pub(crate) fn persistent_problem(&self) -> Option<&VolumeError> {
        let status = self.node_volume.as_ref()?.status.as_ref()?;
        let problem = status.error.as_ref()?;
        (status.failures >= PERSISTENT_AFTER).then_some(problem)
    }

    /// Reduces the objects to what decisions need.
    #[must_use]
    pub fn observed(&self, name: &str, ours: &ServedDrivers) -> Observed {
        self.observed_with(None, name, ours)
    }

    /// Like `observed`, with a cached persistent volume if it was not read.
    pub(crate) fn observed_with(
        &self,
        told: Option<claims::Volume>,
        name: &str,
        ours: &ServedDrivers,
    ) -> Observed {
        let read = self.volume.as_ref().map(|volume| volume_of(volume, ours));
        let volume = read.or(told);
        let has = volume.as_ref().map_or(Bytes(0), |volume| volume.capacity);
        Observed {
            claim: self
                .claim
                .as_ref()
                .map(|claim| self.claim_of(claim, has, name, ours)),
            volume,
            node_volume: self
                .node_volume
                .as_ref()
                .map(|node_volume| claims::NodeVolume {
                    outdated: self.class_differs(node_volume, ours),
                    ..node_volume_of(node_volume, ours)
                }),
            unavailable: self.unavailable.clone(),
            unbindable: self.no_hostname().map(str::to_owned),
            stalled: self.stalled.clone(),
            late: self.late.clone(),
        }
    }

    /// Returns why no volume can be bound to the NodeVolume's node, if that was checked.
    pub(crate) fn no_hostname(&self) -> Option<&str> {
        self.hostname.as_ref()?.as_ref().err().map(String::as_str)
    }

    /// Returns why the NodeVolume's node cannot have the volume, whatever its agent says: no volume can be bound to the
    /// node or can have what it answered, or nothing has come of the request.
    pub(crate) fn unable(&self) -> Option<String> {
        let rejected = || self.node_volume.as_ref().and_then(rejected);
        let hostname = self.no_hostname().map(str::to_owned);
        hostname.or_else(rejected).or_else(|| self.stalled.clone())
    }

    fn claim_of(
        &self,
        claim: &PersistentVolumeClaim,
        volume: Bytes,
        name: &str,
        ours: &ServedDrivers,
    ) -> claims::Claim {
        let spec = claim.spec.clone().unwrap_or_default();
        let request = claim::request_or_most(&spec);
        let uncountable_reason = claim::uncountable_reason(&spec);
        // The status is written after the binding, and until then nothing has to grow.
        let capacity = if is_bound(claim) {
            capacity(claim)
        } else {
            request
        };
        let class = self.class.as_ref();
        claims::Claim {
            has_finalizer: has_finalizer(&claim.metadata, CLAIM_FINALIZER),
            wish: provisioning::wish(claim, class, ours),
            request,
            capacity,
            allocated: allocated(claim),
            drops_allocated: self.drops_allocated,
            // Kubernetes never changes the name, whoever wrote it.
            binding: match spec.volume_name.as_deref() {
                _ if self.claim_is_truncated => Binding::Unknown,
                None | Some("") => Binding::None,
                Some(volume) if volume != name => Binding::Another,
                Some(_) if is_bound(claim) => Binding::This,
                Some(_) => Binding::Named,
            },
            deleting: claim.metadata.deletion_timestamp.is_some(),
            // A request that Kubernetes cannot count orders nothing.
            max_size: class
                .and_then(class::size_limit)
                .or_else(|| uncountable_reason.as_ref().map(|_| capacity.max(volume))),
            forbidden: uncountable_reason
                .or_else(|| {
                    class.and_then(|class| class::limit_violation(class, request.max(capacity)))
                })
                .or_else(|| class::forbidden_expansion(class, claim)),
            file_system_resize_pending: file_system_resize_pending(claim, volume),
            resize_failure: failure(claim),
        }
    }
}

/// Whether a NodeVolume has a class's parameters.
fn has_parameters(node_volume: &NodeVolume, class: &StorageClass) -> bool {
    let none = BTreeMap::new();
    node_volume.spec.parameters == *class.parameters.as_ref().unwrap_or(&none)
}

pub(crate) fn volume_of(volume: &PersistentVolume, ours: &ServedDrivers) -> claims::Volume {
    let spec = volume.spec.as_ref();
    let annotations = volume.metadata.annotations.as_ref();
    let policy = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    claims::Volume {
        ours: is_ours(volume, ours),
        node: annotations
            .and_then(|all| all.get(NODE_ANNOTATION))
            .cloned(),
        has_finalizer: has_finalizer(&volume.metadata, VOLUME_FINALIZER),
        deleting: volume.metadata.deletion_timestamp.is_some(),
        // The phase lags behind when an administrator removes the claim reference.
        released: lost_its_claim(volume) && claimed_by(volume).is_some(),
        reclaim: if policy == Some("Delete") {
            Reclaim::Delete
        } else {
            Reclaim::Retain
        },
        capacity: storage(spec.and_then(|spec| spec.capacity.as_ref())),
    }
}
