//! Preconditions of a recovery.

use crate::{
    api::{
        v1alpha1::NodeVolume,
        well_known::{GROW, NODE_ANNOTATION},
    },
    claims::{self, Answer, believed},
    drivers::Driver,
    k8s::{
        claim::{capacity, request_or_most},
        pod::{Pod, claims_of},
        stateful_set::{claim_name, templates, wanted, wanted_ordinals},
        volume::{driver_of, has, is_ours},
    },
    observe::node_volume_of,
};
use flexvol_sdk::Bytes;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolume, PersistentVolumeClaim},
};
use kube::ResourceExt;

/// State of the claim and its objects.
#[derive(Debug)]
pub(super) struct Found {
    /// UID of the claim's namespace.
    pub namespace: String,
    pub claim: PersistentVolumeClaim,
    /// The volume that the claim names.
    pub volume: PersistentVolume,
    pub node_volume: Option<NodeVolume>,
    pub users: Users,
}

/// Users of the claim.
#[derive(Debug, Default)]
pub(super) struct Users {
    /// Pods that name it.
    pub pods: Vec<String>,
    /// Stateful sets to which it belongs by its name.
    pub sets: Vec<Owner>,
}

/// A stateful set, with the template and the ordinal of the claim.
#[derive(Debug)]
pub(super) struct Owner {
    set: StatefulSet,
    template: String,
    ordinal: i64,
}

/// Plan of a recovery.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The requested size.
    pub asked: Bytes,
    /// The actual size of the storage.
    pub has: Bytes,
    /// The certain size of the file system, with which the claim is recreated.
    pub base: Bytes,
    /// The size to request.
    pub to: Bytes,
}

/// Plans to lower a claim's request to `size`, or else to its actual size. Returns an error if that is impossible.
pub(super) fn plan(found: &Found, size: Option<Bytes>) -> Result<Plan, String> {
    let Found { claim, volume, .. } = found;
    let name = volume.name_any();
    if claim.metadata.deletion_timestamp.is_some() {
        return Err("the claim is being deleted already".to_owned());
    }
    let any = driver_of(volume).map(Driver::named).into_iter().collect();
    if !is_ours(volume, &any) {
        return Err(format!(
            "persistent volume {name} was not made by this controller"
        ));
    }
    if !has(claim, volume) {
        return Err(format!("the claim is not bound to {name} yet"));
    }
    if volume.metadata.deletion_timestamp.is_some() {
        return Err(format!("persistent volume {name} is being deleted"));
    }
    let spec = claim.spec.clone().unwrap_or_default();
    let (asked, base) = (request_or_most(&spec), capacity(claim));
    // The capacity in the claim's status was actual once, and storage never shrinks.
    let has = ordered(found)
        .as_ref()
        .and_then(measured)
        .unwrap_or(base)
        .max(base);
    if let Some(why) = growing(found) {
        return Err(why);
    }
    if asked <= has {
        return Err(format!(
            "the claim asks for {asked}, and its storage has {has}: there is nothing to take back"
        ));
    }
    let to = size.unwrap_or(has);
    if to < has {
        return Err(format!(
            "{to} is less than the {has} that the storage has, and nothing makes it smaller"
        ));
    }
    if to >= asked {
        return Err(format!(
            "{to} is not less than the {asked} that the claim asks for; to grow it, edit it"
        ));
    }
    asked_by_none(found, to)?;
    Ok(Plan {
        asked,
        has,
        base,
        to,
    })
}

fn ordered(found: &Found) -> Option<claims::NodeVolume> {
    let any = driver_of(&found.volume).map(Driver::named).into_iter();
    let node_volume = found.node_volume.as_ref()?;
    Some(node_volume_of(node_volume, &any.collect()))
}

/// The last measured size. An implausible one is ignored.
fn measured(node_volume: &claims::NodeVolume) -> Option<Bytes> {
    let Answer::Present(said) = node_volume.answer else {
        return None;
    };
    let (size, most) = (node_volume.size, node_volume.max_requested_size);
    said.filter(|said| believed(*said, size, most) == *said)
}

/// Why the size of the storage is unknown, if its node may be growing it. Of storage whose driver reports no sizes, the
/// capacity of the claim is the best that is known.
pub(super) fn growing(found: &Found) -> Option<String> {
    let Some(node_volume) = ordered(found) else {
        // Only a volume that was made by hand has no NodeVolume, and no such annotation.
        let is_lost = found.volume.annotations().contains_key(NODE_ANNOTATION);
        return is_lost.then(|| "what the storage has is unknown: its NodeVolume is missing; the controller makes it again, or an event of the claim says why not; repeat the command when its node has answered".to_owned());
    };
    let (node, most) = (&node_volume.node, node_volume.max_requested_size);
    let is_measured = measured(&node_volume).is_some_and(|has| has >= most);
    let reports_none = node_volume.answer == Answer::Present(None);
    if is_measured || reports_none || !node_volume.may_be_growing() {
        return None;
    }
    let asked = format!("what the storage has is unknown: node {node} was asked for {most}");
    Some(match node_volume.problem {
        Some(problem) => format!(
            "{asked}, and whether it has that is uncertain: {}; mend the driver there, and repeat the command when the node has answered",
            problem.message
        ),
        None => format!(
            "{asked}, and has not answered yet; repeat the command when it has, and if it is away, bring it back first"
        ),
    })
}

/// Fails if a set's annotation requests more, because the controller would request it again at once.
fn asked_by_none(found: &Found, to: Bytes) -> Result<(), String> {
    for Owner {
        set, template: of, ..
    } in &found.users.sets
    {
        let mut sizes = wanted(set).into_iter();
        let more =
            sizes.find_map(|(name, size)| size.ok().filter(|size| name == *of && *size > to));
        if let Some(size) = more {
            return Err(format!(
                "stateful set {set} asks for {size} by its annotation {GROW}{of}; lower that first: kubectl annotate statefulset {set} {} --overwrite {GROW}{of}={to}",
                namespace(set),
                set = set.name_any()
            ));
        }
    }
    Ok(())
}

/// Fails if the claim cannot be recreated: a claim in use by a pod cannot be deleted, and a set would recreate a
/// missing claim itself.
pub(super) fn nobody_uses(users: &Users) -> Result<(), String> {
    let makes = |owner: &&Owner| wanted_ordinals(&owner.set).contains(&owner.ordinal);
    if let Some(Owner { set, ordinal, .. }) = users.sets.iter().find(makes) {
        let (name, place) = (set.name_any(), namespace(set));
        if deletes_claims(set) {
            return Err(format!(
                "stateful set {name} uses the claim, and deletes claims with their data when it is scaled down or deleted; change that first: kubectl patch statefulset {name} {place} --patch '{{\"spec\":{{\"persistentVolumeClaimRetentionPolicy\":{{\"whenScaled\":\"Retain\",\"whenDeleted\":\"Retain\"}}}}}}'"
            ));
        }
        return Err(format!(
            "stateful set {name} would make the claim anew with its template's size; scale it down meanwhile, and whoever scales it: kubectl scale statefulset {name} {place} --replicas={}",
            ordinal.saturating_sub(wanted_ordinals(set).start)
        ));
    }
    match users.pods.as_slice() {
        [] => Ok(()),
        pods => Err(format!(
            "the claim has to be recreated, and does not go while pods name it, not even pods that have ended: {}; scale down whoever makes them, or delete them",
            pods.join(", ")
        )),
    }
}

fn namespace(set: &StatefulSet) -> String {
    format!("--namespace={}", set.namespace().unwrap_or_default())
}

fn deletes_claims(set: &StatefulSet) -> bool {
    let policy = set.spec.persistent_volume_claim_retention_policy.as_ref();
    let said = policy
        .iter()
        .flat_map(|policy| [&policy.when_scaled, &policy.when_deleted]);
    said.flatten().any(|said| said == "Delete")
}

/// Whether a pod names a claim. Kubernetes deletes no claim that a pod names, even if the pod has ended
/// (`podUsesPVC` in `pkg/controller/volume/pvcprotection`).
pub(super) fn names(pod: &Pod, claim: &str) -> bool {
    claims_of(pod).iter().any(|name| name == claim)
}

impl Owner {
    /// Finds the set's template and ordinal for a claim of this name.
    pub(super) fn of(set: &StatefulSet, claim: &str) -> Option<Self> {
        let ordinal = claim.rsplit_once('-')?.1.parse().ok()?;
        let mut names = templates(set).into_iter();
        let template = names.find(|template| claim_name(set, template, ordinal) == claim)?;
        Some(Owner {
            set: set.clone(),
            template: template.to_owned(),
            ordinal,
        })
    }
}

#[cfg(test)]
pub(super) mod tests;
