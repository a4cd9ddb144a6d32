//! What speaks against taking a growth back.

use crate::{
    api::{v1alpha1::NodeVolume, well_known::GROW},
    claims::{Answer, believed},
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

/// What is there.
#[derive(Debug)]
pub(super) struct Found {
    /// The UID of the claim's namespace.
    pub namespace: String,
    pub claim: PersistentVolumeClaim,
    /// The one that the claim names.
    pub volume: PersistentVolume,
    pub node_volume: Option<NodeVolume>,
    pub users: Users,
}

/// Who has to do with the claim.
#[derive(Debug, Default)]
pub(super) struct Users {
    /// The pods that name it.
    pub pods: Vec<String>,
    /// The sets whose claim it is, by its name.
    pub sets: Vec<Owner>,
}

/// A set, and which of its claims it is.
#[derive(Debug)]
pub(super) struct Owner {
    set: StatefulSet,
    template: String,
    ordinal: i64,
}

/// What becomes of the claim.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// What it asks for.
    pub asked: Bytes,
    /// What its storage has.
    pub has: Bytes,
    /// What its file system has for certain, with which it is made anew.
    pub base: Bytes,
    /// What it shall ask for.
    pub to: Bytes,
}

/// What is to be done for a claim, to have it ask for `size`, or else for what it has; or why nothing is.
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
    let node_volume = found
        .node_volume
        .as_ref()
        .map(|node_volume| node_volume_of(node_volume, &any));
    let measured = node_volume.and_then(|node_volume| match node_volume.answer {
        // What a node says that nothing explains tells nothing.
        Answer::Present(said) => said.filter(|said| {
            believed(*said, node_volume.size, node_volume.max_requested_size) == *said
        }),
        _ => None,
    });
    // What the claim says was had once, and nothing becomes smaller.
    let has = measured.unwrap_or(base).max(base);
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

/// A set whose annotation asks for more would ask for it again at once.
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

/// Whether the claim can be made anew: a claim that a pod uses does not go, and one that a set misses is made
/// by the set.
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
            "the claim has to be made anew, and does not go while pods name it, not even pods that have ended: {}; scale down whoever makes them, or delete them",
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

/// Whether a pod names a claim. Kubernetes lets none go that a pod names, though it has ended
/// (`podUsesPVC` in `pkg/controller/volume/pvcprotection`).
pub(super) fn names(pod: &Pod, claim: &str) -> bool {
    claims_of(pod).iter().any(|name| name == claim)
}

impl Owner {
    /// Of a claim of this name, if it is that of one of the set's.
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
