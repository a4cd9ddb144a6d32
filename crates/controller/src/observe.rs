//! Reading one volume's objects from the API server, as they are now.

mod orders;

pub(crate) use orders::order_of;

use crate::{
    decide::{self, Away, Binding, Observed, Reclaim},
    growth,
    names::{
        AWAITS_NODE, CLAIM_FINALIZER, FAILED, PROVISIONED_BY, VOLUME_FINALIZER, claim_uid,
        volume_name,
    },
    objects::{ClaimReference, NodeVolume, ProblemReport},
    ours::Ours,
    wish,
};
use anyhow::{Context, Result};
use flexvol_sdk::{Bytes, ErrorClass};
use k8s_openapi::{
    api::{
        core::v1::{
            ObjectReference, PersistentVolume, PersistentVolumeClaim,
            PersistentVolumeClaimCondition,
        },
        storage::v1::StorageClass,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{Api, Client, api::ObjectMeta};
use orders::LASTING;
use std::collections::BTreeMap;

/// The objects of one volume.
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// The claim that the persistent volume is for; before that is there, the one it is named after.
    pub claim: Option<PersistentVolumeClaim>,
    /// The persistent volume of that name.
    pub volume: Option<PersistentVolume>,
    /// The order of that name.
    pub order: Option<NodeVolume>,
    /// The claim's class.
    pub class: Option<StorageClass>,
    /// What became of the node that has to act; others find it out.
    pub away: Option<Away>,
}

/// Reads them. `claim` says where the claim was last seen that the volume is named after, if nothing else
/// tells. A volume that outlived its claim, because its class says Retain, may be for another one.
///
/// # Errors
/// When the API server does not answer.
pub async fn read(
    client: &Client,
    name: &str,
    claim: Option<(String, String)>,
    ours: &Ours,
) -> Result<Live> {
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let orders: Api<NodeVolume> = Api::all(client.clone());
    let (volume, order) = tokio::try_join!(volumes.get_opt(name), orders.get_opt(name))
        .context("read the persistent volume and the order")?;
    let place = volume
        .as_ref()
        .filter(|volume| is_ours(volume, ours))
        .and_then(claimed_by)
        .or_else(|| {
            let place = claim.or_else(|| order.as_ref().map(|order| named(&order.spec.claim)))?;
            Some((place, claim_uid(name).to_owned()))
        });
    let mut live = Live {
        volume,
        order,
        ..Live::default()
    };
    if let Some((place, uid)) = place {
        live.claim = self::claim(client, &uid, &place).await?;
    }
    if let Some(claim) = &live.claim
        && needs_class(claim, ours)
        && let Some(class) = wish::class_name(claim)
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
pub(crate) async fn claim(
    client: &Client,
    uid: &str,
    (namespace, name): &(String, String),
) -> Result<Option<PersistentVolumeClaim>> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let found = claims.get_opt(name).await.context("read the claim")?;
    // One that was made later under the same name is another volume's.
    Ok(found.filter(|claim| self::uid(&claim.metadata) == uid))
}

/// The claim that a persistent volume names.
pub(crate) fn holder(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// Whether Kubernetes has given the claim this volume.
pub(crate) fn has(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let holder = holder(volume).and_then(|holder| holder.uid.as_deref());
    is_bound(claim) && holder == Some(uid(&claim.metadata))
}

/// Which claim a persistent volume is for: namespace and name, and the UID.
fn claimed_by(volume: &PersistentVolume) -> Option<((String, String), String)> {
    let reference = holder(volume)?.clone();
    // Without a UID it is yet to be bound.
    Some(((reference.namespace?, reference.name?), reference.uid?))
}

/// Whether Kubernetes has found the volume's claim gone. What it could not delete it calls Failed; nothing
/// but its claim's end leads there.
pub(crate) fn lost_its_claim(volume: &PersistentVolume) -> bool {
    let status = volume.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Released" | "Failed"))
}

/// Namespace and name of the claim that a persistent volume is for, if it is named after another one.
#[must_use]
pub fn handed_on(volume: &PersistentVolume) -> Option<(String, String)> {
    let (place, uid) = claimed_by(volume)?;
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    (uid != claim_uid(name)).then_some(place)
}

fn named(claim: &ClaimReference) -> (String, String) {
    (claim.namespace.clone(), claim.name.clone())
}

fn needs_class(claim: &PersistentVolumeClaim, ours: &Ours) -> bool {
    // Without a class it is refused.
    matches!(wish::wish(claim, None, ours), decide::Wish::Refused(_)) || grows(claim)
}

/// Whether the claim asks for more than it has.
#[must_use]
pub fn grows(claim: &PersistentVolumeClaim) -> bool {
    let request = claim
        .spec
        .as_ref()
        .and_then(|spec| wish::request(spec).ok());
    is_bound(claim) && request.is_some_and(|request| request > capacity(claim))
}

/// Whether Kubernetes has given the claim its volume.
pub(crate) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    let phase = claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase == Some("Bound")
}

/// The size that the claim is said to have.
#[must_use]
pub fn capacity(claim: &PersistentVolumeClaim) -> Bytes {
    let status = claim.status.as_ref();
    storage(status.and_then(|status| status.capacity.as_ref()))
}

/// The size that the claim says kubelet has to grow its file system to. Releases without
/// `allocatedResources` take the size from the persistent volume, and the request is what that has.
#[must_use]
pub fn awaits_node(claim: &PersistentVolumeClaim) -> Option<Bytes> {
    condition(claim, AWAITS_NODE)?;
    let status = claim.status.as_ref()?;
    let of_storage = status
        .allocated_resource_statuses
        .as_ref()
        .and_then(|all| all.get("storage"));
    // Kubelet has given up, and will not look at it again (`runPreCheck` in node_expander.go).
    if of_storage.is_some_and(|word| word == "NodeResizeInfeasible") {
        return None;
    }
    let spec = claim.spec.as_ref()?;
    match &status.allocated_resources {
        Some(_) => Some(storage(status.allocated_resources.as_ref())),
        None => wish::request(spec).ok(),
    }
}

/// Why the claim's storage did not grow, as the claim says.
#[must_use]
pub fn failure(claim: &PersistentVolumeClaim) -> Option<String> {
    let condition = condition(claim, FAILED)?;
    Some(condition.message.clone().unwrap_or_default())
}

/// A condition that the claim is in.
pub(crate) fn condition<'a>(
    claim: &'a PersistentVolumeClaim,
    kind: &str,
) -> Option<&'a PersistentVolumeClaimCondition> {
    let status = claim.status.iter();
    let mut all = status.flat_map(|status| status.conditions.iter().flatten());
    all.find(|condition| condition.type_ == kind && condition.status == "True")
}

/// The size among quantities; what cannot be read is none.
#[must_use]
pub fn storage(quantities: Option<&BTreeMap<String, Quantity>>) -> Bytes {
    quantities
        .and_then(|all| all.get("storage"))
        .and_then(|quantity| quantity.0.parse().ok())
        .unwrap_or_default()
}

/// An object's UID.
#[must_use]
pub fn uid(meta: &ObjectMeta) -> &str {
    meta.uid.as_deref().unwrap_or_default()
}

/// Whether an object carries a finalizer.
#[must_use]
pub fn has_finalizer(meta: &ObjectMeta, finalizer: &str) -> bool {
    let all = meta.finalizers.as_ref();
    all.is_some_and(|all| all.iter().any(|each| each == finalizer))
}

impl Live {
    /// The names of the volume and of its claim, as far as they are known.
    pub(crate) fn names(&self) -> (String, String) {
        let volume = self.volume.as_ref().map(|volume| &volume.metadata);
        let order = self.order.as_ref().map(|order| &order.metadata);
        let named = volume.or(order).and_then(|meta| meta.name.clone());
        let of_claim = self.claim.as_ref().map(|claim| &claim.metadata);
        let named = named.or_else(|| of_claim.map(|meta| volume_name(uid(meta))));
        let place = of_claim
            .and_then(|meta| Some((meta.namespace.clone()?, meta.name.clone()?)))
            .or_else(|| {
                self.order
                    .as_ref()
                    .map(|order| self::named(&order.spec.claim))
            });
        let claim = place.map(|(namespace, name)| format!("{namespace}/{name}"));
        (named.unwrap_or_default(), claim.unwrap_or_default())
    }

    /// Of which node storage was ordered, of which class, and of which size.
    pub(crate) fn ordered(&self) -> Option<(&str, &str, Bytes)> {
        let order = self.order.as_ref()?;
        let class = self.class.as_ref()?.metadata.name.as_deref()?;
        Some((&order.spec.node, class, Bytes(order.spec.size)))
    }

    /// Whether the node had no room for it.
    pub(crate) fn had_no_room(&self) -> bool {
        let status = self.order.as_ref().and_then(|order| order.status.as_ref());
        let problem = status.and_then(|status| status.problem.as_ref());
        problem.is_some_and(|problem| problem.class() == ErrorClass::Exhausted)
    }

    /// Why the node has failed, if it has so often that another one is asked.
    pub(crate) fn kept_failing(&self) -> Option<&ProblemReport> {
        let status = self.order.as_ref()?.status.as_ref()?;
        let problem = status.problem.as_ref()?;
        (status.failures >= LASTING).then_some(problem)
    }

    /// As far as decisions need it.
    #[must_use]
    pub fn observed(&self, name: &str, ours: &Ours) -> Observed {
        Observed {
            claim: self
                .claim
                .as_ref()
                .map(|claim| self.claim_of(claim, name, ours)),
            volume: self.volume.as_ref().map(|volume| volume_of(volume, ours)),
            order: self.order.as_ref().map(|order| order_of(order, ours)),
            away: self.away.clone(),
        }
    }

    fn claim_of(&self, claim: &PersistentVolumeClaim, name: &str, ours: &Ours) -> decide::Claim {
        let spec = claim.spec.clone().unwrap_or_default();
        let request = wish::request(&spec).unwrap_or_default();
        decide::Claim {
            held: has_finalizer(&claim.metadata, CLAIM_FINALIZER),
            wish: wish::wish(claim, self.class.as_ref(), ours),
            request,
            // It is written after the binding, and until then nothing has to grow.
            capacity: if is_bound(claim) {
                capacity(claim)
            } else {
                request
            },
            // Whoever has written the name, it is not undone.
            binding: match spec.volume_name.as_deref() {
                None | Some("") => Binding::None,
                Some(volume) if volume != name => Binding::Another,
                Some(_) if is_bound(claim) => Binding::This,
                Some(_) => Binding::Named,
            },
            deleting: claim.metadata.deletion_timestamp.is_some(),
            beyond: self
                .class
                .as_ref()
                .and_then(|class| wish::beyond(class, request))
                .or_else(|| growth::forbids(self.class.as_ref(), claim)),
            awaits_node: awaits_node(claim),
            failure: failure(claim),
        }
    }
}

/// The driver of a persistent volume, if it is a FlexVolume.
#[must_use]
pub fn driver_of(volume: &PersistentVolume) -> Option<&str> {
    Some(volume.spec.as_ref()?.flex_volume.as_ref()?.driver.as_str())
}

/// Whether we made the volume, by its name and by what it says, and it is of one of our drivers.
#[must_use]
pub fn is_ours(volume: &PersistentVolume, ours: &Ours) -> bool {
    let annotations = volume.metadata.annotations.as_ref();
    let by = annotations.and_then(|all| all.get(PROVISIONED_BY));
    let is_named = volume
        .metadata
        .name
        .as_deref()
        .is_some_and(|name| !claim_uid(name).is_empty());
    is_named
        && driver_of(volume)
            .is_some_and(|driver| by.is_some_and(|by| by == driver) && ours.has(driver))
}

pub(crate) fn volume_of(volume: &PersistentVolume, ours: &Ours) -> decide::Volume {
    let spec = volume.spec.as_ref();
    let policy = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    decide::Volume {
        ours: is_ours(volume, ours),
        held: has_finalizer(&volume.metadata, VOLUME_FINALIZER),
        deleting: volume.metadata.deletion_timestamp.is_some(),
        // Of a volume that people take from its former claim Kubernetes says so for a while yet.
        released: lost_its_claim(volume) && claimed_by(volume).is_some(),
        reclaim: if policy == Some("Delete") {
            Reclaim::Delete
        } else {
            Reclaim::Retain
        },
        capacity: storage(spec.and_then(|spec| spec.capacity.as_ref())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    fn volume(name: &str, claim: &Value) -> PersistentVolume {
        from_value(json!({
            "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": "a/b"}},
            "spec": {"claimRef": claim, "flexVolume": {"driver": "a/b"}},
            "status": {"phase": "Released"},
        }))
        .unwrap()
    }

    #[test]
    fn a_volume_that_people_take_from_its_former_claim_is_not_released() {
        let released = |claim| volume_of(&volume("pvc-1", &claim), &Ours::from(["a/b"])).released;
        let place = json!({"namespace": "ns", "name": "data", "uid": "2"});
        assert!(released(place));
        assert!(!released(json!({"namespace": "ns", "name": "data"})));
        assert!(!released(Value::Null));
    }

    #[test]
    fn a_volume_of_another_name_is_not_ours_and_another_claim_may_have_ours() {
        let ours = |name: &str, by: &str| is_ours(&volume(name, &Value::Null), &Ours::from([by]));
        assert!(ours("pvc-1", "a/b"));
        assert!(!ours("pvc-1", "a/c"));
        assert!(!ours("copied", "a/b"));
        let of = |uid: &str| json!({"namespace": "ns", "name": "data", "uid": uid});
        assert_eq!(handed_on(&volume("pvc-1", &of("1"))), None);
        let place = ("ns".to_owned(), "data".to_owned());
        assert_eq!(handed_on(&volume("pvc-1", &of("2"))), Some(place));
    }
}
